package compactor.pulsar;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/**
 * The plug-in's lines of broker.conf, whose names begin with "compactor".
 *
 * @param urls addresses of the services of one database
 * @param topics the topics that are compacted by the service, by their full names
 * @param cluster the name that the service has among Pulsar's clusters
 * @param token reads the token of requests; a file is read for each request, so that it may be replaced
 * @param trustedCertificates a file of certificates in PEM; null: those of Java
 * @param requestTimeout of one attempt
 * @param retryFor how long a request is repeated while the service does not answer
 * @param mirrorTimeout how long a compaction waits for the replication of the topic's last entry
 * @param runTimeout how long it waits for the service's run
 * @param pageCacheBytes the most bytes of compacted entries that are held for readers, of all topics together
 */
record Settings(
        List<String> urls,
        Pattern topics,
        String cluster,
        Token token,
        String trustedCertificates,
        Duration requestTimeout,
        Duration retryFor,
        Duration mirrorTimeout,
        Duration runTimeout,
        long pageCacheBytes) {

    /** A source of the token. */
    interface Token {
        /** Returns the token; an empty text: requests have none. */
        String read() throws IOException;
    }

    static Settings of(Properties lines) {
        List<String> urls = new ArrayList<>();
        for (String url : required(lines, "compactorServiceUrl", "http://compactor:8080").split(",")) {
            urls.add(checkedUrl(url.trim()));
        }
        String pattern = required(lines, "compactorTopics", "persistent://public/default/.*");
        Pattern topics;
        try {
            topics = Pattern.compile(pattern);
        } catch (PatternSyntaxException e) {
            throw new IllegalArgumentException(
                    "compactorTopics in broker.conf is no regular expression: " + e.getMessage(), e);
        }
        String certificates = text(lines, "compactorTlsTrustCertsFilePath", "");
        return new Settings(
                List.copyOf(urls),
                topics,
                text(lines, "compactorCluster", "compactor"),
                token(lines),
                certificates.isEmpty() ? null : certificates,
                Duration.ofMillis(number(lines, "compactorRequestTimeoutMs", 10_000)),
                Duration.ofMillis(number(lines, "compactorRetryForMs", 20_000)),
                Duration.ofSeconds(number(lines, "compactorMirrorTimeoutSeconds", 300)),
                Duration.ofSeconds(number(lines, "compactorRunTimeoutSeconds", 3_600)),
                number(lines, "compactorPageCacheMB", 32) << 20);
    }

    private static String checkedUrl(String text) {
        URI url;
        try {
            url = new URI(text);
        } catch (URISyntaxException e) {
            throw new IllegalArgumentException("compactorServiceUrl in broker.conf has an address that is none: write"
                    + " http:// or https:// and a host");
        }
        if (url.getRawUserInfo() != null) {
            throw new IllegalArgumentException("compactorServiceUrl in broker.conf has a user's name, which logs would"
                    + " show: write a token into compactorTokenFile instead");
        }
        if (!Set.of("http", "https").contains(String.valueOf(url.getScheme())) || url.getHost() == null || url.getRawQuery() != null) {
            throw new IllegalArgumentException(
                    "compactorServiceUrl in broker.conf has " + text + ": write http:// or https:// and a host");
        }
        return text.replaceAll("/+$", "");
    }

    private static Token token(Properties lines) {
        String file = text(lines, "compactorTokenFile", "");
        String token = text(lines, "compactorToken", "");
        if (!file.isEmpty() && !token.isEmpty()) {
            throw new IllegalArgumentException(
                    "broker.conf has compactorToken and compactorTokenFile: write only one of them");
        }
        return file.isEmpty() ? () -> token : () -> Files.readString(Path.of(file), StandardCharsets.UTF_8).trim();
    }

    private static String text(Properties lines, String name, String otherwise) {
        return lines.getProperty(name, otherwise).trim();
    }

    private static String required(Properties lines, String name, String example) {
        String value = text(lines, name, "");
        if (value.isEmpty()) {
            throw new IllegalArgumentException(
                    "broker.conf has no line " + name + ": write, for example, " + name + "=" + example);
        }
        return value;
    }

    private static long number(Properties lines, String name, long otherwise) {
        String value = text(lines, name, Long.toString(otherwise));
        try {
            long number = Long.parseLong(value);
            if (number > 0 && number <= Integer.MAX_VALUE) {
                return number;
            }
        } catch (NumberFormatException e) {
            // the sentence below says it
        }
        throw new IllegalArgumentException(name + " in broker.conf is " + value + ": write a number from 1 on");
    }
}
