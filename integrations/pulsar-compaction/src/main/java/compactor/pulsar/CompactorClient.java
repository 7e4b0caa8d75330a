package compactor.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.common.naming.TopicName;
import org.asynchttpclient.AsyncHttpClient;
import org.asynchttpclient.DefaultAsyncHttpClientConfig;
import org.asynchttpclient.Dsl;
import org.asynchttpclient.RequestBuilder;
import org.asynchttpclient.Response;

/**
 * The service's REST, asynchronous.
 *
 * <p>A request that gets no answer, or one that asks for another try, is repeated with growing pauses until
 * {@code compactorRetryForMs} is over: a read that fails stops its consumer for 15 seconds. Every method returns a
 * future, and throws nothing. Failures are {@link ServiceException}s.
 */
final class CompactorClient implements AutoCloseable {
    private static final long FIRST_PAUSE_MS = 100;
    private static final long LONGEST_PAUSE_MS = 2_000;
    private static final ObjectMapper JSON = new ObjectMapper();
    private final Settings settings;
    private final ScheduledExecutorService timer;
    private final AsyncHttpClient http;

    CompactorClient(Settings settings, ScheduledExecutorService timer) {
        this.settings = settings;
        this.timer = timer;
        int timeout = (int) settings.requestTimeout().toMillis();
        DefaultAsyncHttpClientConfig.Builder config = Dsl.config()
                .setThreadPoolName("compactor-http")
                .setConnectTimeout(Math.min(timeout, 5_000))
                .setReadTimeout(timeout)
                .setRequestTimeout(timeout)
                .setMaxRequestRetry(0)
                .setKeepAlive(true)
                .setUserAgent("compactor-pulsar");
        if (settings.trustedCertificates() != null) {
            try {
                config.setSslContext(SslContextBuilder.forClient()
                        .trustManager(new File(settings.trustedCertificates()))
                        .build());
            } catch (IOException | IllegalArgumentException e) {
                throw new IllegalArgumentException(
                        "compactorTlsTrustCertsFilePath in broker.conf is " + settings.trustedCertificates()
                                + ", which cannot be read as certificates: " + e.getMessage(), e);
            }
        }
        http = Dsl.asyncHttpClient(config);
    }

    /** Returns the view of a topic's compacted ledger; that of a topic that the service does not have is NEVER. */
    CompletableFuture<CompactedView> view(String topic) {
        return repeated("GET", topic, "/compacted", Map.of())
                .thenApply(response -> CompactedView.of(json(response)))
                .exceptionally(missing(CompactedView.NEVER));
    }

    /** Returns entries from a position on, at most those that the view covers, as the service sends them. */
    CompletableFuture<byte[]> entries(String topic, Position from, CompactedView view, int maxBytes) {
        Map<String, Object> query = Map.of(
                "ledger", from.getLedgerId(),
                "entry", from.getEntryId(),
                "bytes", maxBytes,
                "generation", view.generation(),
                "horizon", text(view.horizon()));
        return repeated("GET", topic, "/compacted/entries", query).thenApply(Response::getResponseBodyAsBytes);
    }

    /** Returns the first entry that was published at a time or later; null: there is none. */
    CompletableFuture<Position> positionSince(String topic, long publishTime, CompactedView view) {
        Map<String, Object> query = Map.of(
                "publish-time", Math.max(0, publishTime),
                "generation", view.generation(),
                "horizon", text(view.horizon()));
        return repeated("GET", topic, "/compacted/position", query)
                .thenApply(response -> CompactedView.position(json(response).path("position")));
    }

    /** Returns the run that compacted all entries up to a position, or null if none was needed. */
    CompletableFuture<JsonNode> compactUpTo(String topic, Position upTo) {
        long deadline = System.nanoTime() + settings.runTimeout().toNanos();
        return askForRun(topic, Map.of("upto", text(upTo)), FIRST_PAUSE_MS, deadline);
    }

    private CompletableFuture<JsonNode> askForRun(
            String topic, Map<String, Object> query, long pauseMs, long deadline) {
        return repeated("PUT", topic, "/compaction", query).thenCompose(response -> {
            JsonNode answer = json(response);
            String status = answer.path("status").asText();
            if (status.equals("SUCCESS")) {
                return CompletableFuture.completedFuture(answer.path("run"));
            }
            if (!status.equals("RUNNING")) {
                throw new ServiceException(response.getStatusCode(),
                        "the compaction of " + topic + " failed in the service: "
                                + answer.path("error").asText("no reason was given"), null);
            }
            if (System.nanoTime() > deadline) {
                throw new ServiceException(0, "the compaction of " + topic + " has not ended in "
                        + settings.runTimeout().toSeconds() + " s; it goes on in the service. Trigger it again later, or"
                        + " raise compactorRunTimeoutSeconds in broker.conf", null);
            }
            Map<String, Object> again = Map.of("upto", query.get("upto"), "request", answer.path("request").asText());
            return after(pauseMs).thenCompose(ignored ->
                    askForRun(topic, again, Math.min(2 * pauseMs, LONGEST_PAUSE_MS), deadline));
        });
    }

    /** Deletes a topic of the service; one that it does not have is no failure. */
    CompletableFuture<Void> delete(String topic) {
        return repeated("DELETE", topic, "", Map.of("force", true))
                .<Void>thenApply(response -> null)
                .exceptionally(missing(null));
    }

    CompletableFuture<Void> after(long milliseconds) {
        CompletableFuture<Void> future = new CompletableFuture<>();
        timer.schedule(() -> future.complete(null), milliseconds, TimeUnit.MILLISECONDS);
        return future;
    }

    private CompletableFuture<Response> repeated(
            String method, String topic, String path, Map<String, Object> query) {
        long deadline = System.nanoTime() + settings.retryFor().toNanos();
        return attempt(method, topic, path, query, FIRST_PAUSE_MS, deadline);
    }

    private CompletableFuture<Response> attempt(
            String method, String topic, String path, Map<String, Object> query, long pauseMs, long deadline) {
        return once(method, topic, path, query).handle((response, failure) -> {
            if (failure == null) {
                return CompletableFuture.completedFuture(response);
            }
            ServiceException error = (ServiceException) unwrapped(failure);
            long left = Duration.ofNanos(deadline - System.nanoTime()).toMillis();
            if (!error.isTemporary() || left < pauseMs) {
                return CompletableFuture.<Response>failedFuture(error);
            }
            return after(pauseMs).thenCompose(ignored ->
                    attempt(method, topic, path, query, Math.min(2 * pauseMs, LONGEST_PAUSE_MS), deadline));
        }).thenCompose(Function.identity());
    }

    private CompletableFuture<Response> once(String method, String topic, String path, Map<String, Object> query) {
        String url = settings.url() + "/admin/v2/" + TopicName.get(topic).getRestPath() + path;
        String call = method + " " + url;
        CompletableFuture<Response> sent;
        try {
            RequestBuilder request = new RequestBuilder(method).setUrl(url);
            query.forEach((name, value) -> request.addQueryParam(name, value.toString()));
            String token = settings.token().read();
            if (!token.isEmpty()) {
                request.setHeader("Authorization", "Bearer " + token);
            }
            sent = http.executeRequest(request).toCompletableFuture();
        } catch (IOException | RuntimeException e) {
            return CompletableFuture.failedFuture(new ServiceException(0, call + " cannot be sent: " + e, e));
        }
        return sent.handle((response, failure) -> {
            if (failure != null) {
                Throwable cause = unwrapped(failure);
                throw new ServiceException(0, call + " got no answer: " + cause + ". Is the service of"
                        + " compactorServiceUrl in broker.conf running?", cause);
            }
            int status = response.getStatusCode();
            if (status / 100 != 2) {
                throw new ServiceException(status, call + " was answered " + status + ": " + reason(response), null);
            }
            return response;
        });
    }

    private static String reason(Response response) {
        String body = response.getResponseBody(StandardCharsets.UTF_8);
        try {
            return JSON.readTree(body).path("reason").asText(body);
        } catch (IOException e) {
            return body.substring(0, Math.min(body.length(), 200));
        }
    }

    private static JsonNode json(Response response) {
        try {
            return JSON.readTree(response.getResponseBodyAsBytes());
        } catch (IOException e) {
            throw new ServiceException(response.getStatusCode(),
                    response.getUri() + " answered no JSON: is compactorServiceUrl in broker.conf the service?", e);
        }
    }

    /** Returns a handler that turns "no such topic" into a value. */
    private static <T> Function<Throwable, T> missing(T value) {
        return failure -> {
            Throwable error = unwrapped(failure);
            if (error instanceof ServiceException refused && refused.status() == 404) {
                return value;
            }
            throw new CompletionException(error);
        };
    }

    static Throwable unwrapped(Throwable failure) {
        return failure instanceof CompletionException && failure.getCause() != null ? failure.getCause() : failure;
    }

    private static String text(Position position) {
        return position.getLedgerId() + ":" + position.getEntryId();
    }

    @Override
    public void close() throws IOException {
        http.close();
    }
}
