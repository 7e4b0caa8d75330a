package compactor.pulsar;

import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.NavigableMap;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import org.apache.bookkeeper.mledger.Position;

/**
 * Pages of compacted entries that were read last, of all topics together, within a number of bytes.
 *
 * <p>A consumer asks for a few entries at a time, and after a pause for one, two, four: each page serves many of its
 * reads. Readers that wait for the same page share one request.
 *
 * <p>The owner of a page is a loaded topic, not its name: one that was deleted and made again has other entries.
 */
final class PageCache {
    private record Ledger(Object owner, long generation) {
    }

    private record Key(Ledger ledger, Position from) {
    }

    private final long maxBytes;
    private final LinkedHashMap<Key, EntryPage> pages = new LinkedHashMap<>(16, 0.75f, true);
    private final Map<Ledger, NavigableMap<Position, EntryPage>> byPosition = new HashMap<>();
    private final Map<Key, CompletableFuture<EntryPage>> requests = new HashMap<>();
    private long bytes;

    PageCache(long maxBytes) {
        this.maxBytes = maxBytes;
    }

    /** Returns the page that holds the first entry from a position on; {@code load} requests it if none does. */
    CompletableFuture<EntryPage> get(
            Object owner, long generation, Position position, Supplier<CompletableFuture<EntryPage>> load) {
        Key key = new Key(new Ledger(owner, generation), position);
        CompletableFuture<EntryPage> request;
        synchronized (this) {
            EntryPage page = find(key);
            if (page != null) {
                return CompletableFuture.completedFuture(page);
            }
            CompletableFuture<EntryPage> other = requests.get(key);
            if (other != null) {
                return other;
            }
            request = new CompletableFuture<>();
            requests.put(key, request);
        }
        CompletableFuture<EntryPage> loading;
        try {
            loading = load.get();
        } catch (Throwable failure) { // else all later readers of the page would wait for it
            loading = CompletableFuture.failedFuture(failure);
        }
        loading.whenComplete((page, failure) -> {
            synchronized (this) {
                boolean isWanted = requests.remove(key, request);
                if (failure == null && isWanted) {
                    put(key, page);
                }
            }
            if (failure == null) {
                request.complete(page);
            } else {
                request.completeExceptionally(failure);
            }
        });
        return request;
    }

    /** Drops the pages of an owner. One that is requested now is not kept. */
    synchronized void drop(Object owner) {
        requests.keySet().removeIf(key -> key.ledger.owner == owner);
        Iterator<Map.Entry<Ledger, NavigableMap<Position, EntryPage>>> ledgers = byPosition.entrySet().iterator();
        while (ledgers.hasNext()) {
            Map.Entry<Ledger, NavigableMap<Position, EntryPage>> item = ledgers.next();
            if (item.getKey().owner == owner) {
                for (Position from : item.getValue().keySet()) {
                    bytes -= pages.remove(new Key(item.getKey(), from)).bytes();
                }
                ledgers.remove();
            }
        }
    }

    synchronized long bytes() {
        return bytes;
    }

    private EntryPage find(Key key) {
        NavigableMap<Position, EntryPage> ofLedger = byPosition.get(key.ledger);
        Map.Entry<Position, EntryPage> item = ofLedger == null ? null : ofLedger.floorEntry(key.from);
        if (item == null || !item.getValue().holds(key.from)) {
            return null;
        }
        return pages.get(new Key(key.ledger, item.getKey())); // which makes it the one that was used last
    }

    private void put(Key key, EntryPage page) {
        EntryPage before = pages.put(key, page);
        byPosition.computeIfAbsent(key.ledger, ledger -> new TreeMap<>()).put(key.from, page);
        bytes += page.bytes() - (before == null ? 0 : before.bytes());
        Iterator<Map.Entry<Key, EntryPage>> oldest = pages.entrySet().iterator();
        while (bytes > maxBytes) {
            Map.Entry<Key, EntryPage> item = oldest.next();
            oldest.remove();
            bytes -= item.getValue().bytes();
            NavigableMap<Position, EntryPage> ofLedger = byPosition.get(item.getKey().ledger);
            ofLedger.remove(item.getKey().from);
            if (ofLedger.isEmpty()) {
                byPosition.remove(item.getKey().ledger);
            }
        }
    }
}
