import java.util.Arrays;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/**
 * How fast messages go into and out of a topic through Pulsar's binary protocol, for benchmarks.gateway. Commands, each
 * after the service's URL and the topic; each prints one line of JSON:
 *
 * <pre>
 * produce MESSAGES BYTES KEYS   as fast as they are acknowledged, in batches of up to 1,000 or 128 KiB, 20,000 pending
 * latency MESSAGES BYTES RATE   that many a second; how long each took to its acknowledgement
 * read MESSAGES                 a raw reader from the first message on
 * read-compacted                a compacted reader, as long as a message is available
 * </pre>
 *
 * Producing begins with a fifth of the messages, to another topic, which are not counted: the virtual machine compiles
 * meanwhile. Reading reads the topic once before it is measured.
 */
public class PulsarThroughput {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        try (PulsarClient client = PulsarClient.builder()
                .serviceUrl(arguments[0])
                .memoryLimit(512, org.apache.pulsar.client.api.SizeUnit.MEGA_BYTES)
                .build()) {
            switch (arguments[2]) {
                case "produce" -> {
                    int messages = Integer.parseInt(arguments[3]);
                    int bytes = Integer.parseInt(arguments[4]);
                    int keys = Integer.parseInt(arguments[5]);
                    produce(client, topic + "-warm", messages / 5, bytes, keys, 0);
                    print(produce(client, topic, messages, bytes, keys, 0));
                }
                case "latency" -> {
                    int messages = Integer.parseInt(arguments[3]);
                    int bytes = Integer.parseInt(arguments[4]);
                    int rate = Integer.parseInt(arguments[5]);
                    produce(client, topic + "-warm", messages / 5, bytes, 1000, rate);
                    print(produce(client, topic, messages, bytes, 1000, rate));
                }
                case "read" -> {
                    long messages = Long.parseLong(arguments[3]);
                    read(client, topic, messages, false);
                    System.out.println(read(client, topic, messages, false));
                }
                case "read-compacted" -> {
                    read(client, topic, Long.MAX_VALUE, true);
                    System.out.println(read(client, topic, Long.MAX_VALUE, true));
                }
                default -> throw new IllegalArgumentException("no command " + arguments[2]);
            }
        }
    }

    private record Produced(int messages, double seconds, long[] nanos) {}

    private static Produced produce(PulsarClient client, String topic, int messages, int bytes, int keys, int rate)
            throws Exception {
        AtomicReference<Throwable> failed = new AtomicReference<>();
        long[] nanos = new long[messages];
        byte[] value = new byte[bytes];
        Arrays.fill(value, (byte) 'v');
        Semaphore done = new Semaphore(0);
        long started;
        long ended;
        try (Producer<byte[]> producer = client.newProducer()
                .topic(topic)
                .batchingMaxBytes(128 << 10)
                .batchingMaxMessages(1000)
                .batchingMaxPublishDelay(1, TimeUnit.MILLISECONDS)
                .maxPendingMessages(20_000)
                .blockIfQueueFull(true)
                .sendTimeout(0, TimeUnit.SECONDS)
                .create()) {
            started = System.nanoTime();
            for (int number = 0; number < messages; number++) {
                if (rate > 0) {
                    long due = started + number * 1_000_000_000L / rate;
                    while (System.nanoTime() < due) {
                        Thread.sleep(0, 200_000);
                    }
                }
                int at = number;
                long sent = System.nanoTime();
                producer.newMessage().key("key-" + number % keys).value(value).sendAsync().whenComplete((id, error) -> {
                    nanos[at] = System.nanoTime() - sent;
                    if (error != null) {
                        failed.set(error);
                    }
                    done.release();
                });
            }
            producer.flush();
            done.acquire(messages);
            ended = System.nanoTime();
        }
        if (failed.get() != null) {
            throw new IllegalStateException("a message was not taken", failed.get());
        }
        return new Produced(messages, (ended - started) / 1e9, nanos);
    }

    private static void print(Produced found) {
        Arrays.sort(found.nanos());
        double p50 = found.nanos()[found.messages() / 2] / 1e6;
        double p99 = found.nanos()[(int) (found.messages() * 0.99)] / 1e6;
        System.out.printf(
                "{\"messages\": %d, \"seconds\": %.6f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}%n",
                found.messages(), found.seconds(), p50, p99);
    }

    private static String read(PulsarClient client, String topic, long most, boolean compacted) throws Exception {
        long messages = 0;
        long bytes = 0;
        long started = System.nanoTime();
        try (Reader<byte[]> reader = client.newReader()
                .topic(topic)
                .startMessageId(MessageId.earliest)
                .readCompacted(compacted)
                .receiverQueueSize(20_000)
                .create()) {
            while (messages < most && (!compacted || reader.hasMessageAvailable())) {
                Message<byte[]> message = reader.readNext(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException("no message for a minute, after " + messages);
                }
                messages++;
                bytes += message.size();
            }
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        return String.format("{\"messages\": %d, \"bytes\": %d, \"seconds\": %.6f}", messages, bytes, seconds);
    }
}
