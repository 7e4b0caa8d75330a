package compactor.pulsar;

import java.util.HashSet;
import java.util.Set;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/** Reads topics compacted, one after the other, several times; prints topic, messages, keys and milliseconds of each. */
public final class ReadCompacted {

    private ReadCompacted() {
    }

    /** @param arguments URL of the broker, number of rounds, topics */
    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (int round = 0; round < Integer.parseInt(arguments[1]); round++) {
                for (int at = 2; at < arguments.length; at++) {
                    long begin = System.nanoTime();
                    int messages = 0;
                    Set<String> keys = new HashSet<>();
                    try (Reader<byte[]> reader = client.newReader().topic(arguments[at])
                            .startMessageId(MessageId.earliest).readCompacted(true).receiverQueueSize(10_000).create()) {
                        while (reader.hasMessageAvailable()) {
                            Message<byte[]> message = reader.readNext();
                            messages++;
                            keys.add(message.getKey());
                        }
                    }
                    System.out.println(arguments[at] + " " + messages + " " + keys.size() + " "
                            + (System.nanoTime() - begin) / 1_000_000);
                }
            }
        }
    }
}
