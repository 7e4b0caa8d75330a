package compactor.pulsar;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.AsyncCallbacks;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.common.api.proto.CommandSubscribe.InitialPosition;
import org.apache.pulsar.compaction.Compactor;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The cursor {@code __compaction} of one topic: it keeps raw entries until they are compacted, and the view in its
 * properties.
 *
 * <p>An acknowledgement is not durable when it is complete: a broker that is killed comes back with an older one. That
 * is safe, because no entry is trimmed before the acknowledgement is, and newer compacted entries serve an older
 * horizon. Skipping all messages of the subscription empties the properties: then the view is the service's, and no
 * view is ever taken for "never compacted".
 */
final class CompactionCursor {
    private static final Logger LOG = LoggerFactory.getLogger(CompactionCursor.class);
    private final String name;
    private CompletableFuture<Void> storing = CompletableFuture.completedFuture(null);

    CompactionCursor(String topicName) {
        name = topicName;
    }

    /** Creates the cursor at the topic's first entry, unless it exists. */
    CompletableFuture<Void> create(PersistentTopic topic) {
        if (find(topic) != null) {
            return CompletableFuture.completedFuture(null);
        }
        return topic.createSubscription(Compactor.COMPACTION_SUBSCRIPTION, InitialPosition.Earliest, false, null)
                .thenAccept(subscription -> LOG.info("[{}] created the cursor __compaction", name));
    }

    /** Returns the stored view; null: there is none. Throws if Pulsar's own compactor has compacted the topic. */
    CompactedView view(PersistentTopic topic) {
        ManagedCursor cursor = find(topic);
        Map<String, Long> properties = cursor == null ? Map.of() : cursor.getProperties();
        CompactedView view = CompactedView.of(properties);
        Long ledgerId = properties.get(Compactor.COMPACTED_TOPIC_LEDGER_PROPERTY);
        if (view == null && ledgerId != null) {
            throw new IllegalStateException(name + " was compacted by Pulsar's own compactor, into ledger " + ledgerId
                    + ", which the service does not have. Leave the topic out of compactorTopics in broker.conf; or, if"
                    + " its raw messages are complete, delete the subscription __compaction and load the topic again");
        }
        return view;
    }

    /**
     * Stores a view, and lets raw entries up to its horizon go. Does nothing if a newer view is stored.
     *
     * @param before the view that was served until now; null: none
     */
    synchronized CompletableFuture<Void> store(PersistentTopic topic, CompactedView view, CompactedView before) {
        storing = storing.handle((ignored, failure) -> null)
                .thenCompose(ignored -> create(topic))
                .thenCompose(ignored -> storeNow(topic, view, before));
        return storing;
    }

    private CompletableFuture<Void> storeNow(PersistentTopic topic, CompactedView view, CompactedView before) {
        ManagedCursor cursor = find(topic);
        if (cursor == null) {
            return CompletableFuture.failedFuture(new IllegalStateException(
                    "the subscription __compaction of " + name + " was deleted meanwhile: compact again"));
        }
        CompactedView stored = CompactedView.of(cursor.getProperties());
        if (stored != null && !view.isNewerThan(stored)) {
            return CompletableFuture.completedFuture(null);
        }
        warnIfMoved(topic.getManagedLedger(), cursor, before);
        Position mark = cursor.getMarkDeletedPosition();
        if (view.horizon() != null && view.horizon().compareTo(mark) > 0) {
            mark = view.horizon();
        }
        cursor.setAlwaysInactive();
        CompletableFuture<Void> done = new CompletableFuture<>();
        cursor.asyncMarkDelete(mark, view.properties(), new AsyncCallbacks.MarkDeleteCallback() {
            @Override
            public void markDeleteComplete(Object context) {
                done.complete(null);
            }

            @Override
            public void markDeleteFailed(ManagedLedgerException failure, Object context) {
                done.completeExceptionally(failure);
            }
        }, null);
        return done;
    }

    /** Logs that something else than a compaction has moved the cursor: a backlog quota, or a skip. */
    private void warnIfMoved(ManagedLedger ledger, ManagedCursor cursor, CompactedView before) {
        if (before == null || before.horizon() == null) {
            return;
        }
        Position expected = ledger.getNextValidPosition(before.horizon());
        Position next = ledger.getNextValidPosition(cursor.getMarkDeletedPosition());
        if (next.compareTo(expected) > 0) {
            LOG.warn("[{}] the cursor __compaction is at {}, and the compaction horizon is {}: a backlog quota or an"
                    + " administrator has moved it. Messages between them may have been trimmed before they were"
                    + " replicated; exempt the namespace from consumer_backlog_eviction", name,
                    cursor.getMarkDeletedPosition(), before.horizon());
        }
    }

    private static ManagedCursor find(PersistentTopic topic) {
        PersistentSubscription subscription = topic.getSubscription(Compactor.COMPACTION_SUBSCRIPTION);
        return subscription == null ? null : subscription.getCursor();
    }
}
