package compactor.pulsar;

import java.util.concurrent.CompletableFuture;
import java.util.function.BooleanSupplier;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.Position;

/**
 * Waits until the service has every entry of a topic that was there at the beginning.
 *
 * <p>The mark-delete of the replicator's cursor says so, not the last entry that arrived: markers and aborted messages
 * are never sent.
 */
final class MirrorProgress {
    private static final long FIRST_PAUSE_MS = 20;
    private static final long LONGEST_PAUSE_MS = 1_000;
    private final CompactorClient client;
    private final Settings settings;
    private final String cursorName;

    MirrorProgress(CompactorClient client, Settings settings, String replicatorPrefix) {
        this.client = client;
        this.settings = settings;
        cursorName = replicatorPrefix + "." + settings.cluster();
    }

    /**
     * Returns the position up to which everything has arrived, once it is the topic's present last entry or later.
     *
     * @param isEnded whether nobody waits for it any more
     */
    CompletableFuture<Position> caughtUp(String topic, ManagedLedger ledger, BooleanSupplier isEnded) {
        long deadline = System.nanoTime() + settings.mirrorTimeout().toNanos();
        return wait(topic, ledger, ledger.getLastConfirmedEntry(), FIRST_PAUSE_MS, deadline, isEnded);
    }

    private CompletableFuture<Position> wait(String topic, ManagedLedger ledger, Position last, long pauseMs,
            long deadline, BooleanSupplier isEnded) {
        if (isEnded.getAsBoolean()) {
            return CompletableFuture.failedFuture(new IllegalStateException(topic + " was unloaded here before all of it"
                    + " was replicated: trigger its compaction again"));
        }
        ManagedCursor cursor = cursor(ledger);
        if (cursor == null) {
            return CompletableFuture.failedFuture(new IllegalStateException(topic + " has no cursor " + cursorName
                    + ": it is not replicated to the cluster " + settings.cluster() + ". Add that cluster to the"
                    + " namespace (pulsar-admin namespaces set-clusters), or correct compactorCluster in broker.conf"));
        }
        Position arrived = cursor.getMarkDeletedPosition();
        if (arrived.compareTo(last) >= 0) {
            return CompletableFuture.completedFuture(arrived);
        }
        if (System.nanoTime() > deadline) {
            return CompletableFuture.failedFuture(new IllegalStateException("the replication of " + topic
                    + " to the cluster " + settings.cluster() + " is at " + arrived + ", and the last entry is " + last
                    + ", after " + settings.mirrorTimeout().toSeconds() + " s. Is the service running? pulsar-admin"
                    + " topics stats shows the replication; raise compactorMirrorTimeoutSeconds in broker.conf if it"
                    + " is only slow"));
        }
        return client.after(pauseMs).thenCompose(ignored ->
                wait(topic, ledger, last, Math.min(2 * pauseMs, LONGEST_PAUSE_MS), deadline, isEnded));
    }

    private ManagedCursor cursor(ManagedLedger ledger) {
        for (ManagedCursor cursor : ledger.getCursors()) {
            if (cursor.getName().equals(cursorName)) {
                return cursor;
            }
        }
        return null;
    }
}
