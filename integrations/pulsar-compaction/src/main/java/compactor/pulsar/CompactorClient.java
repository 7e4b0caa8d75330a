package compactor.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
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
 *
 * <p>The callers are threads of the broker that must not wait. To send a request may take long (a host's address is
 * looked up, a file with a token is read), so a thread of this class does it. The requests at a time are bounded, and
 * those for pages by their memory: all topics of a broker may be loaded or read at the same moment.
 */
final class CompactorClient implements AutoCloseable {
    private static final long FIRST_PAUSE_MS = 100;
    private static final long LONGEST_PAUSE_MS = 2_000;
    private static final int MOST_REQUESTS = 32;
    private static final ObjectMapper JSON = new ObjectMapper();
    private final Settings settings;
    private final ScheduledExecutorService timer;
    private final AsyncHttpClient http;
    private final Limit requests = new Limit(MOST_REQUESTS);
    private final Limit pages;
    private final ExecutorService sender = Executors.newSingleThreadExecutor(task -> {
        Thread thread = new Thread(task, "compactor-sender");
        thread.setDaemon(true);
        return thread;
    });
    private final Set<CompletableFuture<?>> open = ConcurrentHashMap.newKeySet();
    private volatile boolean isClosed;
    private volatile int chosen; // of the settings' addresses

    CompactorClient(Settings settings, ScheduledExecutorService timer) {
        this.settings = settings;
        this.timer = timer;
        pages = new Limit((int) Math.max(2, Math.min(MOST_REQUESTS, settings.pageCacheBytes() / EntryPage.MOST_BYTES)));
        DefaultAsyncHttpClientConfig.Builder config = Dsl.config()
                .setThreadPoolName("compactor-http")
                .setMaxRequestRetry(0)
                .setKeepAlive(true)
                .setUserAgent("compactor-pulsar");
        long timeout = settings.requestTimeout().toMillis();
        set(config, "setConnectTimeout", Math.min(timeout, 5_000));
        set(config, "setReadTimeout", timeout);
        set(config, "setRequestTimeout", timeout);
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

    /** Sets a number of milliseconds: brokers of 5.0 have a version of the library that takes durations. */
    private static void set(DefaultAsyncHttpClientConfig.Builder config, String name, long milliseconds) {
        try {
            try {
                config.getClass().getMethod(name, Duration.class).invoke(config, Duration.ofMillis(milliseconds));
            } catch (NoSuchMethodException e) {
                config.getClass().getMethod(name, int.class).invoke(config, (int) milliseconds);
            }
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("the broker's async-http-client has no " + name + ": this plug-in is for"
                    + " brokers of Pulsar 4.0, 4.2 and 5.0", e);
        }
    }

    /** Returns the view of a topic's compacted ledger; that of a topic that the service does not have is NEVER. */
    CompletableFuture<CompactedView> view(String topic) {
        return repeated(requests, "GET", topic, "/compacted", Map.of())
                .thenApply(CompactorClient::view)
                .exceptionally(missing(CompactedView.NEVER));
    }

    private static CompactedView view(Response response) {
        try {
            return CompactedView.of(json(response));
        } catch (IllegalArgumentException e) {
            throw new ServiceException(0, response.getUri() + " answered something else than the view of a compacted"
                    + " ledger: is compactorServiceUrl in broker.conf the service?", e);
        }
    }

    /** Returns a page of entries from a position on, at most those that the view covers. */
    CompletableFuture<EntryPage> entries(String topic, Position from, CompactedView view, int maxBytes) {
        Map<String, Object> query = Map.of(
                "ledger", from.getLedgerId(),
                "entry", from.getEntryId(),
                "bytes", maxBytes,
                "generation", view.generation(),
                "horizon", text(view.horizon()));
        return repeated(pages, "GET", topic, "/compacted/entries", query).thenApply(response -> {
            if (response.getHeader("X-Compactor-Generation") == null) {
                // An answer of a proxy. An empty one would be taken for the end of the compacted ledger.
                throw new ServiceException(0, response.getUri() + " answered something else than entries: is"
                        + " compactorServiceUrl in broker.conf the service?", null);
            }
            boolean isLast = "true".equals(response.getHeader("X-Compactor-Last"));
            return EntryPage.parse(from, response.getResponseBodyAsBytes(), isLast);
        });
    }

    /** Returns the first entry that was published at a time or later; null: there is none. */
    CompletableFuture<Position> positionSince(String topic, long publishTime, CompactedView view) {
        Map<String, Object> query = Map.of(
                "publish-time", Math.max(0, publishTime),
                "generation", view.generation(),
                "horizon", text(view.horizon()));
        return repeated(requests, "GET", topic, "/compacted/position", query)
                .thenApply(response -> CompactedView.position(json(response).path("position")));
    }

    /**
     * Returns the run that compacted all entries up to a position, or null if none was needed.
     *
     * @param retainsNullKeys whether the service keeps messages without a key, from now on; false: as its policies say
     * @param isEnded whether nobody waits for it any more
     */
    CompletableFuture<JsonNode> compactUpTo(
            String topic, Position upTo, boolean retainsNullKeys, BooleanSupplier isEnded) {
        long deadline = System.nanoTime() + settings.runTimeout().toNanos();
        Map<String, Object> query = new HashMap<>(Map.of("upto", text(upTo)));
        if (retainsNullKeys) {
            query.put("retain-null-key", true);
        }
        return askForRun(topic, query, FIRST_PAUSE_MS, deadline, isEnded);
    }

    private CompletableFuture<JsonNode> askForRun(
            String topic, Map<String, Object> query, long pauseMs, long deadline, BooleanSupplier isEnded) {
        return repeated(requests, "PUT", topic, "/compaction", query).thenCompose(response -> {
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
            if (isEnded.getAsBoolean()) {
                throw new ServiceException(0, topic + " was unloaded here before its compaction ended, which goes on in"
                        + " the service: trigger it again", null);
            }
            if (System.nanoTime() > deadline) {
                throw new ServiceException(0, "the compaction of " + topic + " has not ended in "
                        + settings.runTimeout().toSeconds() + " s; it goes on in the service. Trigger it again later, or"
                        + " raise compactorRunTimeoutSeconds in broker.conf", null);
            }
            Map<String, Object> again = Map.of("upto", query.get("upto"), "request", answer.path("request").asText());
            return after(pauseMs).thenCompose(ignored ->
                    askForRun(topic, again, Math.min(2 * pauseMs, LONGEST_PAUSE_MS), deadline, isEnded));
        });
    }

    /** Deletes a topic of the service; one that it does not have is no failure. */
    CompletableFuture<Void> delete(String topic) {
        return repeated(requests, "DELETE", topic, "", Map.of("force", true))
                .<Void>thenApply(response -> null)
                .exceptionally(missing(null));
    }

    CompletableFuture<Void> after(long milliseconds) {
        CompletableFuture<Void> future = untilClosed();
        timer.schedule(() -> future.complete(null), milliseconds, TimeUnit.MILLISECONDS);
        return future;
    }

    private CompletableFuture<Response> repeated(
            Limit limit, String method, String topic, String path, Map<String, Object> query) {
        long deadline = System.nanoTime() + settings.retryFor().toNanos();
        String below = "/admin/v2/" + TopicName.get(topic).getRestPath() + path;
        return attempt(limit, method, below, query, FIRST_PAUSE_MS, deadline);
    }

    private CompletableFuture<Response> attempt(
            Limit limit, String method, String path, Map<String, Object> query, long pauseMs, long deadline) {
        return limit.run(() -> once(method, path, query, deadline)).handle((response, failure) -> {
            if (failure == null) {
                return CompletableFuture.completedFuture(response);
            }
            ServiceException error = unwrapped(failure) instanceof ServiceException known
                    ? known
                    : new ServiceException(0, method + " " + path + " failed: " + unwrapped(failure), failure);
            long left = Duration.ofNanos(deadline - System.nanoTime()).toMillis();
            if (!error.isTemporary() || left < pauseMs) {
                return CompletableFuture.<Response>failedFuture(error);
            }
            return after(pauseMs).thenCompose(ignored ->
                    attempt(limit, method, path, query, Math.min(2 * pauseMs, LONGEST_PAUSE_MS), deadline));
        }).thenCompose(Function.identity());
    }

    private CompletableFuture<Response> once(String method, String path, Map<String, Object> query, long deadline) {
        CompletableFuture<Response> answer = untilClosed();
        if (!answer.isDone()) {
            CompletableFuture.supplyAsync(() -> send(method, path, query, deadline), sender)
                    .thenCompose(Function.identity())
                    .whenComplete((response, failure) -> {
                        if (failure == null) {
                            answer.complete(response);
                        } else {
                            answer.completeExceptionally(failure);
                        }
                    });
        }
        return answer;
    }

    /** Returns a future that fails when the client is closed, if it is not done by then. */
    private <T> CompletableFuture<T> untilClosed() {
        CompletableFuture<T> future = new CompletableFuture<>();
        open.add(future);
        future.whenComplete((value, failure) -> open.remove(future));
        if (isClosed) {
            fail(future);
        }
        return future;
    }

    private static void fail(CompletableFuture<?> future) {
        future.completeExceptionally(new ServiceException(0, "the broker ends", null));
    }

    private CompletableFuture<Response> send(String method, String path, Map<String, Object> query, long deadline) {
        int number = chosen;
        String call = method + " " + settings.urls().get(number) + path;
        CompletableFuture<Response> sent;
        try {
            if (System.nanoTime() > deadline + settings.requestTimeout().toNanos()) {
                throw new IOException("other requests have taken all the time");
            }
            RequestBuilder request = new RequestBuilder(method).setUrl(settings.urls().get(number) + path);
            query.forEach((name, value) -> request.addQueryParam(name, value.toString()));
            String token = settings.token().read();
            if (!token.isEmpty()) {
                request.setHeader("Authorization", "Bearer " + token);
            }
            sent = http.executeRequest(request).toCompletableFuture();
        } catch (IOException | RuntimeException e) {
            throw new ServiceException(0, call + " cannot be sent: " + e, e);
        }
        return sent.handle((response, failure) -> {
            if (failure != null) {
                chooseAfter(number);
                Throwable cause = unwrapped(failure);
                throw new ServiceException(0, call + " got no answer: " + cause + ". Is the service of"
                        + " compactorServiceUrl in broker.conf running?", cause);
            }
            int status = response.getStatusCode();
            if (status == 404 && !"NotFound".equals(response.getHeader("X-Compactor-Error"))) {
                chooseAfter(number);
                throw new ServiceException(0, call + " was answered 404 by something else than the service: is"
                        + " compactorServiceUrl in broker.conf right, and is the service behind it running?", null);
            }
            if (status / 100 != 2) {
                if (status >= 500) {
                    chooseAfter(number);
                }
                throw new ServiceException(status, call + " was answered " + status + ": " + reason(response), null);
            }
            return response;
        });
    }

    /** Lets later requests go to the next address, unless another request has done so. */
    private synchronized void chooseAfter(int failed) {
        if (chosen == failed) {
            chosen = (failed + 1) % settings.urls().size();
        }
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
        isClosed = true;
        sender.shutdownNow();
        try {
            http.close();
        } finally { // which leaves a request without an answer that is connecting just now
            open.forEach(CompactorClient::fail);
        }
    }
}
