import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Produces the topics of this folder on a broker, and writes what its own consumer reads from them with read_committed:
 * RecordKafka ADDRESS FOLDER. The segments are then copied from the broker's log directory. RecordKafka legacy FOLDER
 * writes files of the formats 0 and 1 with Kafka's own builder, and what Kafka reads from them.
 */
public class RecordKafka {
    static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static KafkaProducer<byte[], byte[]> producer(String address, String codec, String transactions) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("compression.type", codec);
        settings.put("linger.ms", "50");
        if (transactions != null) {
            settings.put("transactional.id", transactions);
        }
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static ProducerRecord<byte[], byte[]> record(String topic, int partition, int number, String key, String value) {
        List<Header> headers = new ArrayList<>();
        if (number % 5 == 0) {
            headers.add(new RecordHeader("trace", bytes("t" + number)));
        }
        if (number % 10 == 0) {
            headers.add(new RecordHeader("trace", new byte[] {(byte) 0xff, 0}));
            headers.add(new RecordHeader("none", null));
        }
        return new ProducerRecord<>(topic, partition, 1_700_000_000_000L + number * 1000L, bytes(key), bytes(value), headers);
    }

    static String hex(byte[] data) {
        return data == null ? "null" : "\"" + HexFormat.of().formatHex(data) + "\"";
    }

    static String line(long offset, long timestamp, byte[] key, byte[] value, Iterable<Header> headers) {
        StringBuilder text = new StringBuilder();
        text.append("{\"offset\": ").append(offset).append(", \"timestamp\": ").append(timestamp);
        text.append(", \"key\": ").append(hex(key)).append(", \"value\": ").append(hex(value)).append(", \"headers\": [");
        String separator = "";
        for (Header header : headers) {
            text.append(separator).append("[").append(hex(bytes(header.key()))).append(", ").append(hex(header.value())).append("]");
            separator = ", ";
        }
        return text.append("]}").toString();
    }

    static void read(String address, String topic, int partition, Path file) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        List<String> lines = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition place = new TopicPartition(topic, partition);
            consumer.assign(Set.of(place));
            consumer.seekToBeginning(Set.of(place));
            long end = consumer.endOffsets(Set.of(place)).get(place);
            while (consumer.position(place) < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    lines.add(line(record.offset(), record.timestamp(), record.key(), record.value(), record.headers()));
                }
            }
        }
        Files.write(file, lines);
    }

    static void broker(String address, Path folder) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            NewTopic codecs = new NewTopic("codecs", 2, (short) 1).configs(Map.of("segment.ms", "1000"));
            NewTopic transactions = new NewTopic("transactions", 1, (short) 1).configs(Map.of("segment.ms", "1000"));
            NewTopic appended = new NewTopic("appended", 1, (short) 1).configs(Map.of("message.timestamp.type", "LogAppendTime"));
            NewTopic open = new NewTopic("open", 1, (short) 1);
            admin.createTopics(List.of(codecs, transactions, appended, open)).all().get();
        }
        int number = 0;
        for (String codec : CODECS) {
            try (KafkaProducer<byte[], byte[]> producer = producer(address, codec, null)) {
                for (int count = 0; count < 40; count++, number++) {
                    String value = number % 9 == 8 ? null : "value " + number + " of " + codec + " " + "x".repeat(number % 60);
                    producer.send(record("codecs", number % 2, number, number % 13 == 12 ? null : "key-" + number % 17, value));
                }
                producer.flush();
                for (int count = 0; count < 20; count++, number++) {
                    producer.send(record("appended", 0, number, "key-" + number % 7, codec + number));
                }
            }
            Thread.sleep(1200);
        }
        for (String codec : CODECS) {
            try (KafkaProducer<byte[], byte[]> first = producer(address, codec, "first-" + codec);
                    KafkaProducer<byte[], byte[]> second = producer(address, codec, "second-" + codec);
                    KafkaProducer<byte[], byte[]> plain = producer(address, codec, null)) {
                first.initTransactions();
                second.initTransactions();
                for (int round = 0; round < 4; round++) {
                    first.beginTransaction();
                    second.beginTransaction();
                    for (int count = 0; count < 6; count++, number++) {
                        first.send(record("transactions", 0, number, "key-" + number % 11, "first " + number));
                        second.send(record("transactions", 0, number, "key-" + number % 11, "second " + number));
                        if (count == 3) {
                            first.flush();
                            second.flush();
                            plain.send(record("transactions", 0, number, "key-" + number % 11, "plain " + number));
                            plain.flush();
                        }
                    }
                    if (round % 2 == 0) {
                        first.abortTransaction();
                        second.commitTransaction();
                    } else {
                        first.commitTransaction();
                        second.abortTransaction();
                    }
                }
            }
            Thread.sleep(1200);
        }
        KafkaProducer<byte[], byte[]> left = producer(address, "zstd", "left");
        KafkaProducer<byte[], byte[]> plain = producer(address, "zstd", null);
        left.initTransactions();
        left.beginTransaction();
        for (int count = 0; count < 8; count++, number++) {
            plain.send(record("open", 0, number, "key-" + number % 3, "before " + number)).get();
        }
        left.send(record("open", 0, number, "open", "never committed")).get();
        for (int count = 0; count < 5; count++, number++) {
            plain.send(record("open", 0, number, "key-" + number % 3, "after " + number)).get();
        }
        read(address, "codecs", 0, folder.resolve("codecs-0.jsonl"));
        read(address, "codecs", 1, folder.resolve("codecs-1.jsonl"));
        read(address, "transactions", 0, folder.resolve("transactions-0.jsonl"));
        read(address, "appended", 0, folder.resolve("appended-0.jsonl"));
        read(address, "open", 0, folder.resolve("open-0.jsonl"));
        System.out.println("recorded");
        System.out.flush();
        Runtime.getRuntime().halt(0); // the transaction stays open
    }

    static Compression compression(String codec) {
        return Compression.of(CompressionType.forName(codec)).build();
    }

    static void legacy(Path folder) throws Exception {
        for (byte magic = 0; magic < 2; magic++) {
            long offset = 0;
            ByteBuffer all = ByteBuffer.allocate(1 << 20);
            for (TimestampType type : magic == 0 ? List.of(TimestampType.CREATE_TIME) : List.of(TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)) {
                for (String codec : CODECS.subList(0, 4)) {
                    ByteBuffer buffer = ByteBuffer.allocate(1 << 16);
                    MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, magic, compression(codec), type, offset, 1_700_000_999_000L);
                    for (int count = 0; count < 7; count++, offset++) {
                        long timestamp = magic == 0 ? -1 : 1_700_000_000_000L + offset;
                        builder.append(timestamp, count == 5 ? null : bytes("key-" + offset % 5), count == 3 ? null : bytes("legacy " + codec + " " + "y".repeat(30) + offset));
                    }
                    all.put(builder.build().buffer());
                }
            }
            all.flip();
            byte[] data = new byte[all.remaining()];
            all.get(data);
            Path partition = folder.resolve("legacy" + magic + "-0");
            Files.createDirectories(partition);
            Files.write(partition.resolve("00000000000000000000.log"), data);
            List<String> lines = new ArrayList<>();
            for (Record record : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).records()) {
                byte[] key = record.hasKey() ? bytes(StandardCharsets.UTF_8.decode(record.key()).toString()) : null;
                byte[] value = record.hasValue() ? bytes(StandardCharsets.UTF_8.decode(record.value()).toString()) : null;
                lines.add(line(record.offset(), record.timestamp(), key, value, List.of()));
            }
            Files.write(folder.resolve("legacy" + magic + "-0.jsonl"), lines);
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("legacy")) {
            legacy(Path.of(arguments[1]));
        } else {
            broker(arguments[0], Path.of(arguments[1]));
        }
    }
}
