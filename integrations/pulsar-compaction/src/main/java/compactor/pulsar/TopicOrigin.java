package compactor.pulsar;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.AsyncCallbacks;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.Position;

/**
 * The origin of what the service has of a topic's name: this topic, or an earlier one that was deleted while the service
 * was away.
 *
 * <p>The entries do not tell: those of an earlier topic, and those that were trimmed here, are both in older ledgers. So
 * a property of the topic has its first ledger. It is in the metadata of the topic, and ends with it, while the
 * subscription {@code __compaction} may be deleted. Its value ends with a question mark until the service was asked and
 * had nothing older: once it has trimmed raw entries itself, its answer does not tell with what it began.
 */
final class TopicOrigin {
    static final String PROPERTY = "compactor-first-ledger";
    private static final String UNCONFIRMED = "?";

    private TopicOrigin() {
    }

    /** Returns the property of a topic; null: it has none, or no valid one. */
    private static String value(ManagedLedger ledger) {
        String value = ledger.getProperties().get(PROPERTY);
        return value == null || !value.matches("[0-9]{1,18}[?]?") ? null : value;
    }

    static boolean isKnown(ManagedLedger ledger) {
        return value(ledger) != null;
    }

    /** Stores the first ledger of a topic that was made just now. */
    static CompletableFuture<Void> begin(ManagedLedger ledger) {
        return set(ledger, ledger.getLedgersInfo().firstKey() + UNCONFIRMED);
    }

    /**
     * Stores that the service has nothing of an earlier topic. Fails if it has, or may have.
     *
     * @param hasHorizon whether the topic's cursor has a horizon, which it lost if the topic was deleted
     */
    static CompletableFuture<Void> confirm(String topic, ManagedLedger ledger, CompactedView view, boolean hasHorizon) {
        String value = value(ledger);
        if (value == null && hasHorizon) {
            return set(ledger, "0"); // stored by an older version of this plug-in
        }
        boolean isConfirmed = value != null && !value.endsWith(UNCONFIRMED);
        long first = value == null
                ? ledger.getLedgersInfo().firstKey()
                : Long.parseLong(value.replace(UNCONFIRMED, ""));
        boolean isTrimmed = view.first() == null && view.horizon() != null; // the service's raw entries
        boolean isOlder = isBefore(view.first(), first) || isBefore(view.horizon(), first);
        if (isOlder || isTrimmed && !isConfirmed) {
            Position entry = isBefore(view.first(), first) ? view.first() : view.horizon();
            return CompletableFuture.failedFuture(new IllegalStateException("the service has the entry " + entry + " of "
                    + topic + ", which may be of an earlier topic: this one is known from ledger " + first + " on. If a"
                    + " topic of this name was deleted here while the service was away, take the cluster out of the"
                    + " namespace, delete the topic in the service (compactor-admin topics delete --force), and add the"
                    + " cluster again, with replicationStartAt=earliest in broker.conf. If none was ever deleted, the"
                    + " service may have the only copy of messages that were trimmed here: delete nothing, and run"
                    + " pulsar-admin topics update-properties --property " + PROPERTY + "=0 " + topic));
        }
        return isConfirmed ? CompletableFuture.completedFuture(null) : set(ledger, Long.toString(first));
    }

    private static boolean isBefore(Position position, long ledgerId) {
        return position != null && position.getLedgerId() < ledgerId;
    }

    private static CompletableFuture<Void> set(ManagedLedger ledger, String value) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        ledger.asyncSetProperty(PROPERTY, value, new AsyncCallbacks.UpdatePropertiesCallback() {
            @Override
            public void updatePropertiesComplete(Map<String, String> properties, Object context) {
                done.complete(null);
            }

            @Override
            public void updatePropertiesFailed(ManagedLedgerException failure, Object context) {
                done.completeExceptionally(failure);
            }
        }, null);
        return done;
    }
}
