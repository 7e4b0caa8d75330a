package compactor.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpServer;
import io.netty.buffer.ByteBuf;
import java.io.IOException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Queue;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.apache.bookkeeper.mledger.AsyncCallbacks;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.api.proto.SingleMessageMetadata;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.compaction.CompactionServiceFactory;
import org.apache.pulsar.compaction.TopicCompactionService;

/**
 * Checks of the plug-in without a broker, with the libraries of one: {@code main} prints the name of each check that
 * passed, and ends with an error at the first one that fails. A broker's tests run it with the libraries of each version.
 */
public final class PluginChecks {
    private static final String TOPIC = "persistent://public/default/a%2Fb";
    private static int passed;

    private PluginChecks() {
    }

    public static void main(String[] arguments) throws Exception {
        check("the broker's interfaces are implemented", PluginChecks::interfaces);
        check("lines of broker.conf", PluginChecks::settings);
        check("views are kept in properties of a cursor", PluginChecks::properties);
        check("entries of an earlier topic are told apart", PluginChecks::origin);
        check("pages of entries", PluginChecks::pages);
        check("the cache of pages is bounded, and a page is requested once", PluginChecks::cache);
        check("the last message as a broker of 4.0 reads it", PluginChecks::lastEntry);
        check("no method throws", PluginChecks::nothingIsThrown);
        check("the newest view is served", PluginChecks::newestView);
        check("a read takes what was read ahead, and no more", PluginChecks::reads);
        check("requests are repeated while that may help", PluginChecks::retries);
        check("only the service's answers count", PluginChecks::foreignAnswers);
        check("the next address is asked when one fails", PluginChecks::addresses);
        check("requests at a time are bounded", PluginChecks::bounds);
        check("no thread of the caller sends a request, and answers come on few", PluginChecks::threads);
        check("a compaction of an unloaded topic ends", PluginChecks::unloaded);
        check("what waits when the broker ends fails", PluginChecks::end);
        check("tokens are read again", PluginChecks::tokens);
        System.out.println(passed + " checks passed");
    }

    private interface Check {
        void run() throws Exception;
    }

    private static void check(String name, Check check) throws Exception {
        check.run();
        passed++;
        System.out.println(name);
    }

    private static void equal(Object actual, Object expected) {
        if (!String.valueOf(actual).equals(String.valueOf(expected))) {
            throw new AssertionError(actual + " is not " + expected);
        }
    }

    private static void fails(String words, Supplier<?> call) {
        try {
            call.get();
        } catch (RuntimeException e) {
            Throwable error = CompactorClient.unwrapped(e);
            if (!String.valueOf(error.getMessage()).contains(words)) {
                throw new AssertionError("the error does not say " + words, error);
            }
            return;
        }
        throw new AssertionError("no error says " + words);
    }

    /** A method that a broker would call and that is missing would end in an AbstractMethodError there. */
    private static void interfaces() {
        for (var pair : Map.of(
                TopicCompactionService.class, RemoteTopicCompaction.class,
                CompactionServiceFactory.class, CompactorServiceFactory.class).entrySet()) {
            for (Method method : pair.getKey().getMethods()) {
                if (!Modifier.isAbstract(method.getModifiers())) {
                    continue;
                }
                try {
                    Method own = pair.getValue().getMethod(method.getName(), method.getParameterTypes());
                    equal(own.getReturnType(), method.getReturnType());
                    equal(Modifier.isAbstract(own.getModifiers()), false);
                } catch (NoSuchMethodException e) {
                    throw new AssertionError("the plug-in lacks " + method, e);
                }
            }
        }
    }

    private static Properties lines(String... namesAndValues) {
        Properties lines = new Properties();
        lines.setProperty("compactorServiceUrl", "http://127.0.0.1:1/");
        lines.setProperty("compactorTopics", "persistent://public/default/.*");
        for (int at = 0; at < namesAndValues.length; at += 2) {
            lines.setProperty(namesAndValues[at], namesAndValues[at + 1]);
        }
        return lines;
    }

    private static void settings() {
        Settings settings = Settings.of(lines());
        equal(settings.urls(), "[http://127.0.0.1:1]");
        equal(Settings.of(lines("compactorServiceUrl", "http://a:1/, https://b")).urls(), "[http://a:1, https://b]");
        equal(settings.cluster(), "compactor");
        equal(settings.pageCacheBytes(), 32 << 20);
        fails("has no line compactorServiceUrl", () -> Settings.of(lines("compactorServiceUrl", "")));
        fails("has no line compactorTopics", () -> Settings.of(lines("compactorTopics", " ")));
        for (String wrong : List.of("compactor:8080", "compactor", "http://", "http://a,b", "http://a?b", "http://a b")) {
            fails("write http://", () -> Settings.of(lines("compactorServiceUrl", wrong)));
        }
        fails("has a user's name", () -> Settings.of(lines("compactorServiceUrl", "http://a:secret@b")));
        fails("no regular expression", () -> Settings.of(lines("compactorTopics", "(")));
        fails("compactorRetryForMs in broker.conf is 0", () -> Settings.of(lines("compactorRetryForMs", "0")));
        fails("compactorPageCacheMB in broker.conf is x", () -> Settings.of(lines("compactorPageCacheMB", "x")));
        fails("only one of them", () -> Settings.of(lines("compactorToken", "t", "compactorTokenFile", "f")));
        Settings untrusted = Settings.of(lines("compactorTlsTrustCertsFilePath", "/no/such/file"));
        fails("cannot be read as certificates", () -> new CompactorClient(untrusted, null));
    }

    private static void properties() throws IOException {
        LastMessage last = new LastMessage(9, 3, 4, 1_700_000_000_000L);
        CompactedView view = new CompactedView(7, PositionFactory.create(9, 5), last, null);
        equal(CompactedView.of(view.properties()), view);
        CompactedView empty = new CompactedView(7, PositionFactory.create(9, 5), null, null);
        equal(CompactedView.of(empty.properties()), empty);
        equal(CompactedView.of(CompactedView.NEVER.properties()), CompactedView.NEVER);
        equal(CompactedView.of(Map.of()), null);
        equal(CompactedView.of(Map.of("CompactedTopicLedger", 5L)), null);
        String answer = "{\"generation\": 7, \"horizon\": \"9:5\", \"first\": \"2:0\", \"last_message\":"
                + "{\"position\": \"9:3\", \"batch_index\": 4, \"publish_time\": 1700000000000}}";
        CompactedView read = CompactedView.of(new ObjectMapper().readTree(answer));
        equal(read, new CompactedView(7, PositionFactory.create(9, 5), last, PositionFactory.create(2, 0)));
        String never = "{\"generation\": 0, \"horizon\": null, \"first\": null, \"last_message\": null}";
        equal(CompactedView.of(new ObjectMapper().readTree(never)), CompactedView.NEVER);
        for (String wrong : List.of("{}", "[]", "{\"generation\": null}", "{\"generation\": 7}")) {
            fails("no generation and horizon", () -> CompactedView.of(parsed(wrong)));
        }
        CompactedView older = new CompactedView(6, PositionFactory.create(9, 6), null, null);
        equal(view.coversLessThan(older), true);
        equal(older.coversLessThan(view), false);
        equal(view.coversLessThan(view), false);
        equal(view.coversLessThan(CompactedView.NEVER), false);
        equal(view.isNewerThan(null), true);
        equal(view.isNewerThan(empty), false);
    }

    private static JsonNode parsed(String text) {
        try {
            return new ObjectMapper().readTree(text);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    private static byte[] frames(long... ledgerAndEntryIds) {
        ByteBuffer buffer = ByteBuffer.allocate(ledgerAndEntryIds.length / 2 * 22);
        for (int at = 0; at < ledgerAndEntryIds.length; at += 2) {
            buffer.putLong(ledgerAndEntryIds[at]).putLong(ledgerAndEntryIds[at + 1]).putInt(2).putShort((short) at);
        }
        return buffer.array();
    }

    private static List<String> ids(List<Entry> entries) {
        List<String> ids = new ArrayList<>();
        for (Entry entry : entries) {
            equal(entry.getLength(), 2);
            ids.add(entry.getLedgerId() + ":" + entry.getEntryId());
            entry.release();
        }
        return ids;
    }

    private static void pages() {
        Position from = PositionFactory.create(3, 1);
        EntryPage page = EntryPage.parse(from, frames(3, 2, 3, 7, 5, 0), false);
        equal(page.size(), 3);
        equal(page.next(), "5:1");
        equal(ids(page.entries(from, 2)), "[3:2, 3:7]");
        equal(ids(page.entries(PositionFactory.create(3, 3), 9)), "[3:7, 5:0]");
        equal(ids(page.entries(PositionFactory.create(4, -1), 1)), "[5:0]");
        equal(page.entries(from, 1).get(0).getDataBuffer().getShort(0), 0);
        for (String held : List.of("3:1", "3:2", "4:9", "5:0")) {
            equal(page.holds(position(held)), true);
        }
        for (String other : List.of("-1:-1", "3:0", "5:1", "6:0")) {
            equal(page.holds(position(other)), false);
        }
        EntryPage last = EntryPage.parse(from, frames(3, 2), true);
        equal(last.holds(position("3:0")), false);
        equal(last.holds(position("9:9")), true);
        equal(ids(last.entries(position("9:9"), 5)), "[]");
        EntryPage empty = EntryPage.parse(from, new byte[0], true);
        equal(empty.isEmpty(), true);
        equal(empty.holds(from), true);
        equal(ids(empty.entries(from, 5)), "[]");
        equal(EntryPage.parse(from, new byte[0], false).holds(from), false);
        byte[] whole = frames(3, 2);
        for (int length = 1; length < whole.length; length++) {
            byte[] cut = java.util.Arrays.copyOf(whole, length);
            fails("is cut off", () -> EntryPage.parse(from, cut, true));
        }
    }

    private static Position position(String text) {
        String[] parts = text.split(":");
        return PositionFactory.create(Long.parseLong(parts[0]), Long.parseLong(parts[1]));
    }

    private static void cache() {
        PageCache cache = new PageCache(1_000);
        AtomicInteger requests = new AtomicInteger();
        List<CompletableFuture<EntryPage>> answers = new ArrayList<>();
        Supplier<CompletableFuture<EntryPage>> load = () -> {
            requests.incrementAndGet();
            CompletableFuture<EntryPage> answer = new CompletableFuture<>();
            answers.add(answer);
            return answer;
        };
        Object topic = new Object();
        Position from = PositionFactory.create(3, 0);
        EntryPage page = EntryPage.parse(from, frames(3, 0, 3, 9), false);
        CompletableFuture<EntryPage> first = cache.get(topic, 1, from, load);
        CompletableFuture<EntryPage> second = cache.get(topic, 1, from, load);
        equal(requests.get(), 1);
        answers.get(0).complete(page);
        equal(first.join() == second.join(), true);
        cache.get(topic, 1, PositionFactory.create(3, 5), load).join();
        equal(requests.get(), 1);
        cache.get(topic, 2, from, load);
        cache.get(new Object(), 1, from, load);
        equal(requests.get(), 3);
        answers.get(1).completeExceptionally(new IllegalStateException("away"));
        cache.get(topic, 2, from, load);
        equal(requests.get(), 4);
        fails("broken", () -> cache.get(topic, 3, from, () -> {
            throw new IllegalStateException("broken");
        }).join());
        cache.get(topic, 3, from, load);
        equal(requests.get(), 5);
        for (int ledger = 10; ledger < 200; ledger++) {
            Position at = PositionFactory.create(ledger, 0);
            cache.get(topic, 1, at, () -> CompletableFuture.completedFuture(
                    EntryPage.parse(at, frames(at.getLedgerId(), 0), false))).join();
            equal(cache.bytes() <= 1_000, true);
        }
        equal(cache.bytes() > 800, true);
        cache.get(topic, 1, PositionFactory.create(199, 0), load).join();
        equal(requests.get(), 5);
        cache.drop(topic);
        equal(cache.bytes(), 0);
        CompletableFuture<EntryPage> late = cache.get(topic, 1, from, load);
        cache.drop(topic);
        answers.get(5).complete(page);
        equal(late.join() == page, true);
        equal(cache.bytes(), 0); // it came after its topic was unloaded
    }

    /** Reads an entry as {@code ServerCnx} of 4.0 does. */
    private static void lastEntry() throws IOException {
        for (int index : new int[] {-1, 0, 1, 5}) {
            Entry entry = new LastMessage(9, 3, index, 1_700_000_000_000L).entry();
            equal(entry.getLedgerId() + ":" + entry.getEntryId(), "9:3");
            ByteBuf payload = entry.getDataBuffer();
            MessageMetadata metadata = Commands.parseMessageMetadata(payload);
            equal(metadata.getPublishTime(), 1_700_000_000_000L);
            int last = -1;
            for (int slot = 0; metadata.getNumMessagesInBatch() > 1 && slot < metadata.getNumMessagesInBatch(); slot++) {
                SingleMessageMetadata single = new SingleMessageMetadata();
                Commands.deSerializeSingleMessageInBatch(payload, single, slot, metadata.getNumMessagesInBatch())
                        .release();
                last = single.isCompactedOut() ? last : slot;
            }
            equal(last, index);
            entry.release();
        }
    }

    /** A managed ledger that begins with ledger 9, and the properties of its topic. */
    private static ManagedLedger ledger(Map<String, String> properties) {
        return (ManagedLedger) Proxy.newProxyInstance(
                PluginChecks.class.getClassLoader(), new Class<?>[] {ManagedLedger.class}, (proxy, method, arguments) -> {
                    switch (method.getName()) {
                        case "getProperties":
                            return properties;
                        case "getLedgersInfo":
                            return new TreeMap<>(Map.of(9L, "", 12L, ""));
                        case "asyncSetProperty":
                            properties.put((String) arguments[0], (String) arguments[1]);
                            ((AsyncCallbacks.UpdatePropertiesCallback) arguments[2])
                                    .updatePropertiesComplete(properties, null);
                            return null;
                        default:
                            throw new UnsupportedOperationException(method.getName());
                    }
                });
    }

    /** Whatever the service has, entries in ledgers that are not here any more are served only if they are known. */
    private static void origin() {
        CompactedView fresh = CompactedView.NEVER;
        CompactedView own = new CompactedView(1, position("12:5"), null, position("9:0"));
        CompactedView older = new CompactedView(1, position("5:5"), null, position("5:0"));
        CompactedView raw = new CompactedView(0, null, null, position("5:0"));
        CompactedView mixed = new CompactedView(1, position("12:5"), null, position("5:0"));
        CompactedView trimmed = new CompactedView(1, position("12:5"), null, null);
        for (String before : new String[] {"", "9?", "9", "x"}) {
            for (CompactedView view : List.of(fresh, own, older, raw, mixed, trimmed)) {
                Map<String, String> properties = new HashMap<>();
                if (!before.isEmpty()) {
                    properties.put(TopicOrigin.PROPERTY, before);
                }
                ManagedLedger ledger = ledger(properties);
                if (view == fresh || view == own || view == trimmed && before.equals("9")) {
                    TopicOrigin.confirm(TOPIC, ledger, view, false).join();
                    equal(properties.get(TopicOrigin.PROPERTY), "9");
                } else {
                    fails("delete nothing", () -> TopicOrigin.confirm(TOPIC, ledger, view, false).join());
                    equal(properties.getOrDefault(TopicOrigin.PROPERTY, ""), before);
                    properties.put(TopicOrigin.PROPERTY, "0"); // as the error advises
                    TopicOrigin.confirm(TOPIC, ledger, view, false).join();
                }
            }
        }
        Map<String, String> upgraded = new HashMap<>();
        TopicOrigin.confirm(TOPIC, ledger(upgraded), older, true).join();
        equal(upgraded, Map.of(TopicOrigin.PROPERTY, "0"));
        Map<String, String> created = new HashMap<>();
        TopicOrigin.begin(ledger(created)).join();
        equal(created, Map.of(TopicOrigin.PROPERTY, "9?"));
    }

    /** A dispatcher that gets an exception has no answer, and never asks again. */
    private static void nothingIsThrown() throws Exception {
        CompactorServiceFactory factory = new CompactorServiceFactory();
        RemoteTopicCompaction compaction = new RemoteTopicCompaction(factory, TOPIC, CompletableFuture.completedFuture(true));
        List<Supplier<CompletableFuture<?>>> calls = List.of(
                compaction::compact,
                compaction::prepare,
                () -> compaction.readCompactedEntries(PositionFactory.EARLIEST, 1),
                compaction::getLastCompactedPosition,
                () -> compaction.findEntryByPublishTime(0),
                compaction::getLastMessagePosition,
                compaction::readLastCompactedEntry,
                () -> compaction.findEntryByEntryIndex(0),
                () -> factory.newTopicCompactionService(TOPIC));
        for (Supplier<CompletableFuture<?>> call : calls) {
            CompletableFuture<?> answer = call.get(); // of a factory without a broker
            equal(answer.isCompletedExceptionally(), true);
        }
    }

    /** A compaction of a loaded topic, at a service. */
    private static RemoteTopicCompaction compaction(Service service) {
        PageCache pages = new PageCache(1 << 20);
        return new RemoteTopicCompaction(new CompactorServiceFactory() {
            @Override
            CompactorClient client() {
                return service.client;
            }

            @Override
            PageCache pages() {
                return pages;
            }
        }, TOPIC, CompletableFuture.completedFuture(false));
    }

    /** Two answers of the service may come in either order. */
    private static void newestView() throws Exception {
        try (Service service = new Service(exchange -> 200)) {
            RemoteTopicCompaction compaction = compaction(service);
            CompactedView second = new CompactedView(2, PositionFactory.create(9, 5), null, null);
            compaction.learn(second);
            compaction.learn(new CompactedView(1, PositionFactory.create(9, 1), null, null));
            equal(compaction.getLastCompactedPosition().join(), "9:5");
            compaction.learn(CompactedView.NEVER);
            equal(compaction.getLastCompactedPosition().join(), "9:5");
        }
    }

    private static void reads() throws Exception {
        List<String> requests = Collections.synchronizedList(new ArrayList<>());
        try (Service service = new Service(request -> {
            requests.add(request);
            return 200;
        })) {
            RemoteTopicCompaction compaction = compaction(service);
            compaction.learn(new CompactedView(1, PositionFactory.create(9, 9), null, null));
            service.pages.add(frames(9, 0, 9, 1, 9, 2, 9, 3));
            service.pages.add(frames(9, 6, 9, 7));
            equal(ids(compaction.readCompactedEntries(PositionFactory.EARLIEST, 1).join()), "[9:0]");
            equal(requests.size(), 1);
            equal(ids(compaction.readCompactedEntries(position("9:1"), 2).join()), "[9:1, 9:2]");
            equal(ids(compaction.readCompactedEntries(position("9:3"), 9).join()), "[9:3]");
            equal(ids(compaction.readCompactedEntries(position("9:4"), 9).join()), "[9:6, 9:7]");
            equal(ids(compaction.readCompactedEntries(position("9:8"), 9).join()), "[]");
            equal(ids(compaction.readCompactedEntries(position("10:0"), 9).join()), "[]");
            equal(requests.size(), 2); // the second page was the last one
            service.json = "{\"position\": null}";
            CompletableFuture<?> sought = compaction.findEntryByPublishTime(1); // of an entry in 4.0
            Object found = sought.join();
            equal(found instanceof Entry entry ? entry.getPosition() : found, "9:10"); // else a broker answers 500
        }
    }

    private static void foreignAnswers() throws Exception {
        CompactedView view = new CompactedView(1, PositionFactory.create(9, 9), null, null);
        try (Service service = new Service(request -> 200, "compactorRetryForMs", "1")) {
            service.hasHeaders = false;
            fails("something else than entries", () -> service.client.entries(TOPIC, position("0:0"), view, 1).join());
            service.json = "{\"status\": \"up\"}";
            fails("something else than the view", () -> service.client.view(TOPIC).join());
            service.json = "";
            fails("something else than the view", () -> service.client.view(TOPIC).join());
            service.json = "<html>";
            fails("no JSON", () -> service.client.view(TOPIC).join());
        }
        try (Service service = new Service(request -> 404, "compactorRetryForMs", "1")) {
            equal(service.client.view(TOPIC).join(), CompactedView.NEVER);
            service.hasHeaders = false;
            fails("404 by something else", () -> service.client.view(TOPIC).join());
            fails("404 by something else", () -> service.client.delete(TOPIC).join());
        }
    }

    private static void addresses() throws Exception {
        AtomicInteger statuses = new AtomicInteger(200);
        try (Service second = new Service(request -> statuses.get());
                Service both = new Service(request -> 503, "compactorServiceUrl", "http://127.0.0.1:1," + second.url,
                        "compactorRetryForMs", "5000")) {
            both.client.view(TOPIC).join();
            both.client.view(TOPIC).join();
        }
    }

    private static void bounds() throws Exception {
        AtomicInteger most = new AtomicInteger();
        AtomicInteger now = new AtomicInteger();
        CyclicBarrier all = new CyclicBarrier(32);
        try (Service service = new Service(request -> {
            most.accumulateAndGet(now.incrementAndGet(), Math::max);
            try {
                all.await(); // answers none before 32 are there
            } catch (InterruptedException | BrokenBarrierException e) {
                throw new IllegalStateException(e);
            }
            now.decrementAndGet();
            return 200;
        })) {
            List<CompletableFuture<?>> answers = new ArrayList<>();
            for (int number = 0; number < 320; number++) {
                answers.add(service.client.view(TOPIC));
            }
            answers.forEach(CompletableFuture::join);
            equal(most.get(), 32);
        }
        Limit limit = new Limit(2);
        List<CompletableFuture<Integer>> calls = new ArrayList<>();
        Supplier<CompletableFuture<Integer>> call = () -> {
            calls.add(new CompletableFuture<>());
            return calls.get(calls.size() - 1);
        };
        CompletableFuture<Integer> first = limit.run(call);
        limit.run(call);
        CompletableFuture<Integer> third = limit.run(call);
        equal(calls.size(), 2);
        calls.get(0).completeExceptionally(new IllegalStateException("first"));
        fails("first", first::join);
        equal(calls.size(), 3);
        calls.get(2).complete(3);
        equal(third.join(), 3);
        AtomicInteger count = new AtomicInteger();
        for (int number = 0; number < 100_000; number++) { // without a stack that grows
            limit.run(() -> {
                count.incrementAndGet();
                throw new IllegalStateException("at once");
            });
        }
        equal(count.get(), 100_000);
    }

    private static void unloaded() throws Exception {
        AtomicBoolean isEnded = new AtomicBoolean();
        try (Service service = new Service(request -> 200)) {
            service.json = "{\"status\": \"RUNNING\", \"request\": \"1.1.1\"}";
            CompletableFuture<?> run = service.client.compactUpTo(TOPIC, position("1:1"), false, isEnded::get);
            isEnded.set(true);
            fails("was unloaded", run::join);
        }
    }

    private static void end() throws Exception {
        ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
        CompactorClient client = new CompactorClient(Settings.of(lines()), timer);
        CompletableFuture<?> waiting = client.view(TOPIC); // of a service that is away
        client.close();
        timer.shutdownNow();
        fails("", waiting::join);
        fails("", () -> client.view(TOPIC).join());
    }

    private static void retries() throws Exception {
        List<Integer> statuses = new ArrayList<>(List.of(503, 507, 429));
        List<String> requests = new ArrayList<>();
        try (Service service = new Service(exchange -> {
            synchronized (requests) {
                requests.add(exchange);
                return statuses.isEmpty() ? 200 : statuses.remove(0);
            }
        })) {
            equal(service.client.view(TOPIC).join(), CompactedView.NEVER);
            equal(requests.size(), 4);
            equal(requests.get(0), "GET /admin/v2/persistent/public/default/a%252Fb/compacted");
            for (int status : new int[] {400, 401, 403, 409}) {
                requests.clear();
                statuses.add(status);
                fails("was answered " + status + ": because", () -> service.client.view(TOPIC).join());
                equal(requests.size(), 1);
            }
            statuses.add(404);
            equal(service.client.view(TOPIC).join(), CompactedView.NEVER);
            statuses.add(404);
            service.client.delete(TOPIC).join();
        }
        ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
        try (CompactorClient away = new CompactorClient(Settings.of(lines("compactorRetryForMs", "300")), timer)) {
            fails("got no answer", () -> away.view(TOPIC).join());
            fails("got no answer", () -> away.delete(TOPIC).join());
        } finally {
            timer.shutdownNow();
        }
    }

    private static void threads() throws Exception {
        Set<String> names = ConcurrentHashMap.newKeySet();
        Set<String> senders = ConcurrentHashMap.newKeySet();
        Settings settings = Settings.of(lines());
        ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
        Settings.Token token = () -> {
            senders.add(Thread.currentThread().getName());
            throw new IOException("no token");
        };
        try (CompactorClient client = new CompactorClient(
                new Settings(settings.urls(), settings.topics(), "c", token, null, Duration.ofMinutes(1),
                        Duration.ofMillis(9), Duration.ofMillis(9), Duration.ofMillis(9), 1), timer)) {
            fails("no token", () -> client.view(TOPIC).join());
            equal(senders, "[compactor-sender]");
        } finally {
            timer.shutdownNow();
        }
        try (Service service = new Service(exchange -> 200)) {
            for (int number = 0; number < 50; number++) {
                service.client.view(TOPIC)
                        .thenAccept(view -> names.add(Thread.currentThread().getName()))
                        .join();
            }
        }
        names.remove(Thread.currentThread().getName());
        Set<String> kinds = new HashSet<>();
        names.forEach(name -> kinds.add(name.replaceAll("-[0-9-]+$", "")));
        equal(Set.of("compactor-http", "compactor-sender").containsAll(kinds), true);
    }

    private static void tokens() throws Exception {
        Path file = Files.createTempFile("token", "");
        Files.writeString(file, "first\n");
        try (Service service = new Service(exchange -> 200, "compactorTokenFile", file.toString())) {
            service.client.view(TOPIC).join();
            equal(service.authorization, "Bearer first");
            Files.writeString(file, "second");
            service.client.view(TOPIC).join();
            equal(service.authorization, "Bearer second");
            Files.delete(file);
            fails("cannot be sent", () -> service.client.view(TOPIC).join());
        }
    }

    /** A service that answers as it is told, and a client of it. */
    private static final class Service implements AutoCloseable {
        final CompactorClient client;
        final String url;
        final Queue<byte[]> pages = new ConcurrentLinkedQueue<>();
        volatile String json = "{\"generation\": 0}";
        volatile boolean hasHeaders = true;
        volatile String authorization;
        private final HttpServer server;
        private final ExecutorService threads = Executors.newCachedThreadPool();
        private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();

        interface Answers {
            int status(String request);
        }

        Service(Answers answers, String... lines) throws IOException {
            server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
            server.setExecutor(threads);
            server.createContext("/", exchange -> {
                authorization = exchange.getRequestHeaders().getFirst("Authorization");
                int status = answers.status(exchange.getRequestMethod() + " " + exchange.getRequestURI().getRawPath());
                byte[] body = (status == 200 ? json : "{\"reason\": \"because\"}").getBytes(StandardCharsets.UTF_8);
                if (status == 200 && exchange.getRequestURI().getPath().endsWith("/entries")) {
                    body = pages.isEmpty() ? new byte[0] : pages.remove();
                    if (pages.isEmpty() && hasHeaders) {
                        exchange.getResponseHeaders().set("X-Compactor-Last", "true");
                    }
                }
                if (hasHeaders) {
                    exchange.getResponseHeaders().set(
                            status == 404 ? "X-Compactor-Error" : "X-Compactor-Generation", status == 404 ? "NotFound" : "1");
                }
                exchange.sendResponseHeaders(status, body.length == 0 ? -1 : body.length);
                if (body.length > 0) {
                    exchange.getResponseBody().write(body);
                }
                exchange.close();
            });
            server.start();
            url = "http://127.0.0.1:" + server.getAddress().getPort();
            Properties properties = lines(lines);
            if (!List.of(lines).contains("compactorServiceUrl")) {
                properties.setProperty("compactorServiceUrl", url);
            }
            properties.putIfAbsent("compactorRetryForMs", lines.length > 0 ? "1" : "5000");
            client = new CompactorClient(Settings.of(properties), timer);
        }

        @Override
        public void close() throws IOException {
            client.close();
            server.stop(0);
            threads.shutdownNow();
            timer.shutdownNow();
        }
    }
}
