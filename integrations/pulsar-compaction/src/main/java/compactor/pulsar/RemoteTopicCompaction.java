package compactor.pulsar;

import io.netty.buffer.Unpooled;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.impl.EntryImpl;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.compaction.TopicCompactionService;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Compaction of one loaded topic by the service (PIP-278).
 *
 * <p>Horizon and last message come from the cursor's properties, so only compacted reads and compactions wait for the
 * service. Every failure is a failed future: a thrown exception would leave a dispatcher without an answer, and an empty
 * list means to it that the compacted part is over.
 *
 * <p>The methods of brokers of 4.0 are here, too: {@code readLastCompactedEntry}, {@code findEntryByEntryIndex}, and
 * {@code findEntryByPublishTime}, whose future has an entry there and a position in 4.2.
 */
final class RemoteTopicCompaction implements TopicCompactionService {
    private static final Logger LOG = LoggerFactory.getLogger(RemoteTopicCompaction.class);
    private static final int FIRST_PAGE_BYTES = 1 << 20;
    private static final boolean FINDS_POSITIONS = hasLastMessagePosition();
    private final CompactorServiceFactory factory;
    private final CompactorClient client;
    private final String topic;
    private final CompactionCursor cursor;
    private volatile CompactedView known;
    private volatile int unloads; // a topic whose unloading failed goes on
    private final CompletableFuture<Boolean> isNew;
    private CompletableFuture<CompactedView> asking;
    private CompletableFuture<Void> beginning;

    /**
     * Makes the compaction of a topic that is loaded now.
     *
     * @param isNew whether there was no topic of this name before
     */
    RemoteTopicCompaction(CompactorServiceFactory factory, String topic, CompletableFuture<Boolean> isNew) {
        this.factory = factory;
        this.isNew = isNew;
        this.client = factory.client();
        this.topic = topic;
        cursor = new CompactionCursor(topic);
    }

    private static boolean hasLastMessagePosition() {
        try {
            TopicCompactionService.class.getMethod("getLastMessagePosition");
            return true;
        } catch (NoSuchMethodException e) {
            return false;
        }
    }

    /** Creates the cursor of a topic that was loaded, and takes the service's view if that is newer. */
    CompletableFuture<Void> prepare() {
        return guarded(() -> loadedTopic().thenCompose(loaded -> begin(loaded)
                .thenCompose(ignored -> cursor.create(loaded))
                .thenCompose(ignored -> client.view(topic))
                .thenCompose(view -> adopt(loaded, view))));
    }

    /**
     * Stores that a new topic was never compacted, whatever the service has of an earlier topic of its name, which was
     * deleted while the service was away. Returns whether the topic is new.
     */
    private CompletableFuture<Boolean> begin(PersistentTopic loaded) {
        return isNew.thenCompose(isMissing -> {
            ManagedLedger ledger = loaded.getManagedLedger();
            synchronized (this) {
                if (!isMissing || beginning == null && (TopicOrigin.isKnown(ledger) || cursor.view(loaded) != null)) {
                    return CompletableFuture.completedFuture(false);
                }
                if (beginning == null || beginning.isCompletedExceptionally()) {
                    beginning = cursor.create(loaded)
                            .thenCompose(ignored -> TopicOrigin.begin(ledger))
                            .thenCompose(ignored -> cursor.store(loaded, CompactedView.NEVER, null))
                            .thenAccept(ignored -> learn(CompactedView.NEVER));
                }
                return beginning.thenApply(ignored -> true);
            }
        });
    }

    @Override
    public CompletableFuture<Void> compact() {
        return guarded(() -> {
            long begin = System.nanoTime();
            CountingCompactor counts = factory.counts();
            counts.began(topic);
            return loadedTopic().thenCompose(loaded -> compact(loaded, counts, begin)).whenComplete((ignored, failure) -> {
                if (failure != null) {
                    counts.failed(topic);
                }
            });
        });
    }

    private CompletableFuture<Void> compact(PersistentTopic loaded, CountingCompactor counts, long begin) {
        cursor.view(loaded); // throws if Pulsar's own compactor has compacted it
        int begun = unloads;
        BooleanSupplier isEnded = () -> unloads != begun;
        return cursor.create(loaded)
                .thenCompose(ignored -> factory.mirror().caughtUp(topic, loaded.getManagedLedger(), isEnded))
                .thenCompose(arrived -> client.view(topic).thenCompose(before -> {
                    checkWhole(loaded, before);
                    boolean retainsNullKeys = factory.pulsar().getConfiguration().isTopicCompactionRetainNullKey();
                    return confirm(loaded, before)
                            .thenCompose(ignored -> client.compactUpTo(topic, arrived, retainsNullKeys, isEnded));
                }))
                .thenCompose(run -> client.view(topic)
                        .thenCompose(view -> adopt(loaded, view))
                        .thenRunAsync(() -> counts.succeeded(topic, run, System.nanoTime() - begin)));
    }

    /** Makes a view the one that is served, and stores it, if it is newer than the one that is known. */
    private CompletableFuture<Void> adopt(PersistentTopic loaded, CompactedView view) {
        CompactedView stored = cursor.view(loaded);
        CompactedView current = stored == null ? known : learn(stored);
        if (current != null && !view.isNewerThan(current)) {
            return confirm(loaded, view);
        }
        if (view.coversLessThan(current)) {
            throw new IllegalStateException(topic + " is compacted up to " + view.horizon() + " in the service, by its"
                    + " generation " + view.generation() + ", and up to " + current.horizon() + " by generation "
                    + current.generation() + ", which this broker knows: its database was restored from a backup."
                    + " Restore a newer one");
        }
        if (view.horizon() != null) {
            checkWhole(loaded, view);
        }
        return confirm(loaded, view)
                .thenCompose(ignored -> cursor.store(loaded, view, current))
                .handle((ignored, failure) -> {
                    if (failure == null) {
                        LOG.info("[{}] compacted up to {}, generation {}", topic, view.horizon(), view.generation());
                    } else if (view.horizon() == null) { // true now, and asked for again when the topic is loaded again
                        LOG.warn("[{}] {}", topic, CompactorClient.unwrapped(failure).getMessage());
                    } else {
                        throw new CompletionException(CompactorClient.unwrapped(failure));
                    }
                    learn(view);
                    return null;
                });
    }

    /** Fails if the service has entries of an earlier topic of this name, or may have. */
    private CompletableFuture<Void> confirm(PersistentTopic loaded, CompactedView view) {
        CompactedView stored = cursor.view(loaded);
        boolean hasHorizon = stored != null && stored.horizon() != null;
        return TopicOrigin.confirm(topic, loaded.getManagedLedger(), view, hasHorizon);
    }

    /** Returns the view that is served from now on: the newer one of the known one and this. */
    synchronized CompactedView learn(CompactedView view) {
        if (view.isNewerThan(known)) {
            known = view; // never an older one: raw entries behind the newer one's horizon may be trimmed
        }
        return known;
    }

    /**
     * Throws if entries that this broker still has were never replicated, because the replication began after them:
     * a horizon would hide them.
     */
    private void checkWhole(PersistentTopic loaded, CompactedView view) {
        CompactedView stored = cursor.view(loaded);
        boolean isFirst = (known == null || known.horizon() == null) && (stored == null || stored.horizon() == null);
        if (!isFirst || view.first() == null) {
            return;
        }
        ManagedLedger ledger = loaded.getManagedLedger();
        Position begin = ledger.getFirstPosition();
        Position first = begin == null ? null : ledger.getNextValidPosition(begin);
        if (first != null && view.first().compareTo(first) > 0) {
            throw new IllegalStateException("the replication of " + topic + " to the cluster " + factory.cluster()
                    + " began at " + view.first() + ", and the topic begins at " + first + ": compaction would hide the"
                    + " entries before. Set replicationStartAt=earliest in broker.conf, take the cluster out of the"
                    + " namespace, delete the topic in the service, and add the cluster again");
        }
    }

    /**
     * Returns the view of the topic: the one in memory, the one in the cursor's properties, or, if those are empty, the
     * service's. It never guesses that a topic was not compacted.
     */
    private CompletableFuture<CompactedView> view() {
        CompactedView view = known;
        if (view != null) {
            return CompletableFuture.completedFuture(view);
        }
        synchronized (this) {
            if (asking == null || asking.isDone()) {
                asking = loadedTopic().thenCompose(this::askForView);
            }
            return asking;
        }
    }

    private CompletableFuture<CompactedView> askForView(PersistentTopic loaded) {
        CompactedView stored = cursor.view(loaded);
        if (stored != null) {
            return CompletableFuture.completedFuture(learn(stored));
        }
        return begin(loaded).thenCompose(isBegun -> isBegun
                ? CompletableFuture.completedFuture(known)
                : client.view(topic).thenCompose(view -> adopt(loaded, view)).thenApply(ignored -> known));
    }

    @Override
    public CompletableFuture<List<Entry>> readCompactedEntries(Position position, int count) {
        return guarded(() -> view().thenCompose(view -> {
            if (view.horizon() == null || position.compareTo(view.horizon()) > 0) {
                return CompletableFuture.completedFuture(List.of());
            }
            return page(view, position, FIRST_PAGE_BYTES).thenApply(page -> {
                List<Entry> entries = page.entries(position, count);
                if (!page.isLast() && !page.isEmpty() && page.index(position) + count >= page.size() / 2) {
                    page(view, page.next(), EntryPage.MOST_BYTES); // so that the next page is here when it is read
                }
                return entries;
            });
        }));
    }

    private CompletableFuture<EntryPage> page(CompactedView view, Position position, int bytes) {
        return factory.pages().get(this, view.generation(), position, () -> client.entries(topic, position, view, bytes));
    }

    @Override
    public CompletableFuture<Position> getLastCompactedPosition() {
        return guarded(() -> view().thenApply(CompactedView::horizon));
    }

    /** Returns an entry to a broker of 4.0, and a position to one of 4.2. */
    @Override
    @SuppressWarnings("unchecked")
    public CompletableFuture<Position> findEntryByPublishTime(long publishTime) {
        CompletableFuture<Position> found = guarded(() -> view().thenCompose(view -> view.horizon() == null
                ? CompletableFuture.completedFuture(null)
                : client.positionSince(topic, publishTime, view)
                        .thenApply(position -> position == null ? view.horizon().getNext() : position)));
        if (FINDS_POSITIONS) {
            return found;
        }
        return (CompletableFuture<Position>) (CompletableFuture<?>) found.thenApply(position -> position == null
                ? null
                : EntryImpl.create(position.getLedgerId(), position.getEntryId(), Unpooled.EMPTY_BUFFER));
    }

    @Override
    @SuppressWarnings("unchecked")
    public CompletableFuture<MessagePosition> getLastMessagePosition() {
        return (CompletableFuture<MessagePosition>) (CompletableFuture<?>)
                guarded(() -> view().thenApply(view -> LastMessage.messagePosition(view.last())));
    }

    /** Of brokers of 4.0: returns an entry with the position, batch index and publish time of the last message. */
    public CompletableFuture<Entry> readLastCompactedEntry() {
        return guarded(() -> view().thenApply(view -> view.last() == null ? null : view.last().entry()));
    }

    /** Of brokers of 4.0, which do not call it: indexes of entries are not replicated. */
    public CompletableFuture<Entry> findEntryByEntryIndex(long index) {
        return CompletableFuture.failedFuture(new UnsupportedOperationException(
                topic + " is compacted by the service, which has no indexes of entries: search by publish time"));
    }

    /** Returns the topic, which may still be loading. */
    private CompletableFuture<PersistentTopic> loadedTopic() {
        return factory.pulsar().getBrokerService().getTopicIfExists(topic).thenApply(loaded -> (PersistentTopic) loaded
                .orElseThrow(() -> new IllegalStateException(topic + " is not loaded here any more: try again")));
    }

    private static <T> CompletableFuture<T> guarded(Supplier<CompletableFuture<T>> call) {
        CompletableFuture<T> answer = new CompletableFuture<>();
        try {
            call.get().whenComplete((value, failure) -> {
                if (failure == null) {
                    answer.complete(value);
                } else {
                    answer.completeExceptionally(CompactorClient.unwrapped(failure));
                }
            });
        } catch (Throwable failure) {
            answer.completeExceptionally(failure);
        }
        return answer;
    }

    @Override
    public void close() {
        synchronized (this) {
            unloads++;
        }
        factory.closed(topic, this);
    }
}
