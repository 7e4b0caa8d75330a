import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Messages into and out of a Kafka topic, for benchmarks.peers. Records files hold keys and values of fixed sizes, one
 * after the other. Commands, each after the broker's address and the topic:
 *
 * <pre>
 * load FILE KEY_BYTES VALUE_BYTES CODEC PARTITIONS BATCH_BYTES   makes the topic if there is none, sends all, waits for
 *               all; prints "sent in N ms"
 * compact       closes all segments, then lets the cleaner at them; prints "partition end-offset" for each partition
 * read FILE KEY_BYTES VALUE_BYTES   writes all that is there, tombstones left out
 * delete
 * </pre>
 *
 * The topic is not compacted before `compact`, so that the cleaner's passes all begin at one moment.
 */
public class KafkaMessages {
    private static final byte[] CLOSING_KEY = "closes the segment before it".getBytes();

    public static void main(String[] arguments) throws Exception {
        String command = arguments[0];
        String address = arguments[1];
        String topic = arguments[2];
        switch (command) {
            case "load" -> load(
                    address, topic, Path.of(arguments[3]), number(arguments[4]), number(arguments[5]), arguments[6],
                    number(arguments[7]), arguments[8]);
            case "compact" -> compact(address, topic);
            case "read" -> read(address, topic, Path.of(arguments[3]), number(arguments[4]), number(arguments[5]));
            case "delete" -> {
                try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
                    admin.deleteTopics(List.of(topic)).all().get();
                }
            }
            default -> throw new IllegalArgumentException("no command " + command);
        }
    }

    private static int number(String text) {
        return Integer.parseInt(text);
    }

    private static KafkaProducer<byte[], byte[]> producer(String address, String codec, String batchBytes) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", address);
        settings.put("key.serializer", ByteArraySerializer.class);
        settings.put("value.serializer", ByteArraySerializer.class);
        settings.put("compression.type", codec);
        settings.put("batch.size", batchBytes);
        settings.put("buffer.memory", "67108864");
        return new KafkaProducer<>(settings);
    }

    private static void load(
            String address, String topic, Path file, int keyBytes, int valueBytes, String codec, int partitions,
            String batchBytes)
            throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            NewTopic made = new NewTopic(topic, Optional.of(partitions), Optional.of((short) 1));
            admin.createTopics(List.of(made.configs(Map.of("cleanup.policy", "delete", "retention.ms", "-1"))))
                    .all()
                    .get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) {
                throw error;
            }
        }
        long elapsed;
        AtomicReference<Exception> failed = new AtomicReference<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(address, codec, batchBytes);
                DataInputStream source = new DataInputStream(new BufferedInputStream(Files.newInputStream(file), 1 << 20))) {
            producer.partitionsFor(topic);
            long started = System.nanoTime();
            long left = Files.size(file) / (keyBytes + valueBytes);
            for (; left > 0 && failed.get() == null; left--) {
                byte[] key = source.readNBytes(keyBytes);
                byte[] value = source.readNBytes(valueBytes);
                producer.send(new ProducerRecord<>(topic, key, value), (metadata, error) -> {
                    if (error != null) {
                        failed.set(error);
                    }
                });
            }
            producer.flush();
            elapsed = (System.nanoTime() - started) / 1_000_000;
        }
        if (failed.get() != null) {
            throw failed.get();
        }
        System.out.println("sent in " + elapsed + " ms");
    }

    private static void compact(String address, String topic) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address));
                KafkaProducer<byte[], byte[]> producer = producer(address, "none", "16384")) {
            configure(admin, topic, Map.of("segment.ms", "1"));
            int partitions = producer.partitionsFor(topic).size();
            for (int partition = 0; partition < partitions; partition++) {
                // The segment before it is closed, because it is older than a millisecond; this is the active one's.
                long offset = producer.send(new ProducerRecord<>(topic, partition, CLOSING_KEY, null)).get().offset();
                System.out.println(partition + " " + offset);
            }
            configure(
                    admin,
                    topic,
                    Map.of("cleanup.policy", "compact", "min.cleanable.dirty.ratio", "0.0001", "segment.ms", "604800000"));
        }
    }

    private static void configure(Admin admin, String topic, Map<String, String> settings) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        settings.forEach((name, value) ->
                changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), changes))
                .all()
                .get();
    }

    private static void read(String address, String topic, Path file, int keyBytes, int valueBytes) throws IOException {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", address);
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        settings.put("max.poll.records", "10000");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
                OutputStream target = new BufferedOutputStream(Files.newOutputStream(file), 1 << 20)) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(one -> new TopicPartition(topic, one.partition()))
                    .toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(one -> consumer.position(one) < ends.get(one))) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    if (record.value() == null) {
                        continue;
                    }
                    if (record.key().length != keyBytes || record.value().length != valueBytes) {
                        throw new IOException("a record of other sizes than were sent, at offset " + record.offset());
                    }
                    target.write(record.key());
                    target.write(record.value());
                }
            }
        }
    }
}
