package compactor.pulsar;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import org.apache.bookkeeper.mledger.Position;

/**
 * Pages of compacted entries that were read last, of all topics together, within a number of bytes.
 *
 * <p>A consumer asks for a few entries at a time, and after a pause for one, two, four: each page serves many of its
 * reads. Readers that wait for the same page share one request.
 */
final class PageCache {
    private record Key(String topic, long generation, Position from) {
    }

    private final long maxBytes;
    private final LinkedHashMap<Key, EntryPage> pages = new LinkedHashMap<>(16, 0.75f, true);
    private final Map<Key, CompletableFuture<EntryPage>> requests = new LinkedHashMap<>();
    private long bytes;

    PageCache(long maxBytes) {
        this.maxBytes = maxBytes;
    }

    /** Returns the page that holds the first entry from a position on; {@code load} requests it if none does. */
    CompletableFuture<EntryPage> get(
            String topic, long generation, Position position, Supplier<CompletableFuture<EntryPage>> load) {
        Key key = new Key(topic, generation, position);
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
        load.get().whenComplete((page, failure) -> {
            synchronized (this) {
                requests.remove(key);
                if (failure == null) {
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

    /** Drops the pages of a topic. */
    synchronized void drop(String topic) {
        for (Key key : new ArrayList<>(pages.keySet())) {
            if (key.topic.equals(topic)) {
                bytes -= pages.remove(key).bytes();
            }
        }
    }

    synchronized long bytes() {
        return bytes;
    }

    private EntryPage find(Key key) {
        for (Map.Entry<Key, EntryPage> item : pages.entrySet()) {
            Key other = item.getKey();
            if (other.generation == key.generation && other.topic.equals(key.topic)
                    && item.getValue().holds(key.from)) {
                return pages.get(other); // which makes it the one that was used last
            }
        }
        return null;
    }

    private void put(Key key, EntryPage page) {
        EntryPage before = pages.put(key, page);
        bytes += page.bytes() - (before == null ? 0 : before.bytes());
        for (Key oldest : new ArrayList<>(pages.keySet())) {
            if (bytes <= maxBytes) {
                return;
            }
            bytes -= pages.remove(oldest).bytes();
        }
    }
}
