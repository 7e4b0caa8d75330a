package compactor.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.broker.PulsarServerException;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.compaction.PublishingOrderCompactor;

/**
 * Pulsar's own compactor, which also counts the compactions of the service, so that the broker's statistics and metrics
 * of compaction have them.
 */
final class CountingCompactor extends PublishingOrderCompactor {

    CountingCompactor(PulsarService pulsar) throws PulsarServerException {
        super(pulsar.getConfiguration(), pulsar.getClient(), pulsar.getBookKeeperClient(),
                pulsar.getCompactorExecutor());
    }

    void began(String topic) {
        mxBean.addCompactionStartOp(topic);
    }

    void failed(String topic) {
        mxBean.addCompactionEndOp(topic, false);
    }

    /**
     * Takes a while for millions of messages.
     *
     * @param run of the service; null: none was needed
     */
    void succeeded(String topic, JsonNode run, long nanoseconds) {
        if (run != null && run.isObject()) {
            JsonNode statistics = run.path("statistics");
            mxBean.addCompactionReadOp(topic, statistics.path("bytes_read").asLong());
            mxBean.addCompactionWriteOp(topic, statistics.path("bytes_written").asLong());
            mxBean.addCompactionLatencyOp(topic, nanoseconds, TimeUnit.NANOSECONDS);
            long removed = statistics.path("messages_in").asLong() + statistics.path("messages_before").asLong()
                    - statistics.path("messages_out").asLong();
            for (long left = removed; left > 0; left--) {
                mxBean.addCompactionRemovedEvent(topic);
            }
        }
        mxBean.addCompactionEndOp(topic, true);
    }
}
