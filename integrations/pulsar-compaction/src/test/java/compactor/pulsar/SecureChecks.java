package compactor.pulsar;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;

/** Checks of the plug-in at a service with TLS and tokens, without a broker. */
public final class SecureChecks {
    private static final String TOPIC = "persistent://public/secure/t";

    private SecureChecks() {
    }

    /** @param arguments address of the service by its IP address, file of its CA, file of a token that may do everything */
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0];
        String authority = arguments[1];
        String token = Files.readString(Path.of(arguments[2])).trim();
        String[] trusted = {"compactorTlsTrustCertsFilePath", authority, "compactorTokenFile", arguments[2]};
        equal(view(url, trusted), CompactedView.NEVER.toString());
        equal(delete(url, trusted), "deleted");
        equal(view(url, "compactorTlsTrustCertsFilePath", authority, "compactorToken", token),
                CompactedView.NEVER.toString());
        String unknown = view(url, "compactorToken", token);
        contains(unknown, "got no answer: ");
        contains(unknown, "certificat");
        contains(view(url.replace("127.0.0.1", "localhost"), trusted), "got no answer: "); // the certificate's name
        contains(view(url, "compactorTlsTrustCertsFilePath", authority), "was answered 401: ");
        String refused = view(url, "compactorTlsTrustCertsFilePath", authority, "compactorToken", token + "x");
        contains(refused, "was answered 401: ");
        equal(refused.contains(token), false);
        System.out.println("passed");
    }

    /** Returns the view of a topic, or the error. */
    private static String view(String url, String... lines) throws Exception {
        return with(url, client -> String.valueOf(client.view(TOPIC).join()), lines);
    }

    private static String delete(String url, String... lines) throws Exception {
        return with(url, client -> {
            client.delete(TOPIC).join();
            return "deleted";
        }, lines);
    }

    private interface Call {
        String make(CompactorClient client);
    }

    private static String with(String url, Call call, String... lines) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("compactorServiceUrl", url);
        properties.setProperty("compactorTopics", ".*");
        properties.setProperty("compactorRetryForMs", "1");
        for (int at = 0; at < lines.length; at += 2) {
            properties.setProperty(lines[at], lines[at + 1]);
        }
        ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
        try (CompactorClient client = new CompactorClient(Settings.of(properties), timer)) {
            return call.make(client);
        } catch (RuntimeException e) {
            return String.valueOf(CompactorClient.unwrapped(e).getMessage());
        } finally {
            timer.shutdownNow();
        }
    }

    private static void equal(Object actual, Object expected) {
        if (!actual.equals(expected)) {
            throw new AssertionError(actual + " is not " + expected);
        }
    }

    private static void contains(String actual, String words) {
        if (!actual.contains(words)) {
            throw new AssertionError(actual + " does not say " + words);
        }
    }
}
