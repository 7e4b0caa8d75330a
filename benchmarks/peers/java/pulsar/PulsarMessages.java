import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/**
 * Messages into and out of a Pulsar topic, for benchmarks.peers. Records files hold keys and values of fixed sizes, one
 * after the other; keys are ASCII. Commands, each after the broker's address and the topic:
 *
 * <pre>
 * load FILE KEY_BYTES VALUE_BYTES CODEC BATCH_BYTES   sends all in batches, waits for all; prints "sent in N ms"
 * read FILE KEY_BYTES VALUE_BYTES   writes what a compacted reader gets, tombstones left out
 * </pre>
 */
public class PulsarMessages {
    public static void main(String[] arguments) throws Exception {
        String command = arguments[0];
        String topic = arguments[2];
        Path file = Path.of(arguments[3]);
        int keyBytes = Integer.parseInt(arguments[4]);
        int valueBytes = Integer.parseInt(arguments[5]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[1]).build()) {
            switch (command) {
                case "load" -> load(
                        client, topic, file, keyBytes, valueBytes, CompressionType.valueOf(arguments[6]),
                        Integer.parseInt(arguments[7]));
                case "read" -> read(client, topic, file, keyBytes, valueBytes);
                default -> throw new IllegalArgumentException("no command " + command);
            }
        }
    }

    private static void load(
            PulsarClient client, String topic, Path file, int keyBytes, int valueBytes, CompressionType codec,
            int batchBytes)
            throws Exception {
        AtomicReference<Throwable> failed = new AtomicReference<>();
        long elapsed;
        try (Producer<byte[]> producer = client.newProducer()
                        .topic(topic)
                        .compressionType(codec)
                        .enableBatching(true)
                        .batchingMaxBytes(batchBytes)
                        .batchingMaxMessages(1000)
                        .batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS)
                        .maxPendingMessages(20_000)
                        .blockIfQueueFull(true)
                        .sendTimeout(0, TimeUnit.SECONDS)
                        .create();
                DataInputStream source = new DataInputStream(new BufferedInputStream(Files.newInputStream(file), 1 << 20))) {
            long started = System.nanoTime();
            long left = Files.size(file) / (keyBytes + valueBytes);
            for (; left > 0 && failed.get() == null; left--) {
                String key = new String(source.readNBytes(keyBytes), StandardCharsets.US_ASCII);
                byte[] value = source.readNBytes(valueBytes);
                producer.newMessage().key(key).value(value).sendAsync().whenComplete((id, error) -> {
                    if (error != null) {
                        failed.set(error);
                    }
                });
            }
            producer.flush();
            elapsed = (System.nanoTime() - started) / 1_000_000;
        }
        if (failed.get() != null) {
            throw new IOException("a message was not taken", failed.get());
        }
        System.out.println("sent in " + elapsed + " ms");
    }

    private static void read(PulsarClient client, String topic, Path file, int keyBytes, int valueBytes)
            throws Exception {
        try (Reader<byte[]> reader = client.newReader()
                        .topic(topic)
                        .startMessageId(MessageId.earliest)
                        .readCompacted(true)
                        .receiverQueueSize(20_000)
                        .create();
                OutputStream target = new BufferedOutputStream(Files.newOutputStream(file), 1 << 20)) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IOException("no message for a minute, though one is said to be there");
                }
                byte[] key = message.getKey().getBytes(StandardCharsets.US_ASCII);
                byte[] value = message.getData();
                if (value.length == 0) {
                    continue;
                }
                if (key.length != keyBytes || value.length != valueBytes) {
                    throw new IOException("a message of other sizes than were sent, at " + message.getMessageId());
                }
                target.write(key);
                target.write(value);
            }
        }
    }
}
