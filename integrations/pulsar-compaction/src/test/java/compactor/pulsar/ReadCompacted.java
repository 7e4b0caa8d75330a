package compactor.pulsar;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/**
 * Reads topics compacted, one after the other, several times, each time in the other order. Prints "cold" for the first
 * read since the topic was loaded and "warm" for the one after it, then topic, messages, keys and milliseconds.
 */
public final class ReadCompacted {

    private ReadCompacted() {
    }

    /** @param arguments URL of the broker, URL of its REST, number of rounds, topics */
    public static void main(String[] arguments) throws Exception {
        List<String> topics = new ArrayList<>(List.of(arguments).subList(3, arguments.length));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (int round = 0; round < Integer.parseInt(arguments[2]); round++) {
                for (String topic : topics) {
                    String path = arguments[1] + "/admin/v2/" + topic.replace("://", "/");
                    ask("PUT", path + "/unload");
                    ask("GET", path + "/stats"); // which loads it
                }
                for (String kind : List.of("cold", "warm")) {
                    for (String topic : topics) {
                        System.out.println(kind + " " + read(client, topic));
                    }
                }
                Collections.reverse(topics);
            }
        }
    }

    private static String read(PulsarClient client, String topic) throws Exception {
        long begin = System.nanoTime();
        int messages = 0;
        Set<String> keys = new HashSet<>();
        try (Reader<byte[]> reader = client.newReader().topic(topic)
                .startMessageId(MessageId.earliest).readCompacted(true).receiverQueueSize(10_000).create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext();
                messages++;
                keys.add(message.getKey());
            }
        }
        return topic + " " + messages + " " + keys.size() + " " + (System.nanoTime() - begin) / 1_000_000;
    }

    private static void ask(String verb, String url) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url))
                .method(verb, HttpRequest.BodyPublishers.noBody())
                .build();
        int status = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.discarding()).statusCode();
        if (status / 100 != 2) {
            throw new IllegalStateException(verb + " " + url + " was answered " + status);
        }
    }
}
