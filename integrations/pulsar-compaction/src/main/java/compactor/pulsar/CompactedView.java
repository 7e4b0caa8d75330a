package compactor.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;

/**
 * What a broker knows of the compacted ledger of a topic, in its own positions.
 *
 * <p>It is stored in the properties of the cursor {@code __compaction}, so that loading a topic, raw reads and
 * "is a message available" wait for no request. The mark-delete of the cursor is not the horizon: it moves to the next
 * ledger when the last one is full.
 *
 * @param generation 0: the topic was never compacted
 * @param horizon the last entry that the compacted ledger covers; null: there is none
 * @param last the last message of the compacted ledger; null: it has none
 * @param first the first entry that the service stores; null: unknown, or there is none. It is not kept
 */
record CompactedView(long generation, Position horizon, LastMessage last, Position first) {

    static final CompactedView NEVER = new CompactedView(0, null, null, null);
    private static final String GENERATION = "CompactorGeneration";
    private static final String HORIZON_LEDGER = "CompactorHorizonLedger";
    private static final String HORIZON_ENTRY = "CompactorHorizonEntry";
    private static final String LAST_LEDGER = "CompactorLastLedger";
    private static final String LAST_ENTRY = "CompactorLastEntry";
    private static final String LAST_INDEX = "CompactorLastIndex";
    private static final String LAST_TIME = "CompactorLastTime";

    /** Returns the view that a cursor's properties hold; null: they hold none. */
    static CompactedView of(Map<String, Long> properties) {
        Long generation = properties.get(GENERATION);
        if (generation == null) {
            return null;
        }
        if (generation == 0) {
            return NEVER;
        }
        LastMessage last = null;
        if (properties.containsKey(LAST_LEDGER)) {
            last = new LastMessage(
                    properties.get(LAST_LEDGER),
                    properties.get(LAST_ENTRY),
                    properties.get(LAST_INDEX).intValue(),
                    properties.get(LAST_TIME));
        }
        Position horizon = PositionFactory.create(properties.get(HORIZON_LEDGER), properties.get(HORIZON_ENTRY));
        return new CompactedView(generation, horizon, last, null);
    }

    /** Returns the view of an answer of the service. Throws if it has none: that is not "never compacted". */
    static CompactedView of(JsonNode answer) {
        if (!answer.path("generation").isIntegralNumber()
                || answer.path("generation").asLong() > 0 && position(answer.path("horizon")) == null) {
            throw new IllegalArgumentException("the answer has no generation and horizon");
        }
        JsonNode message = answer.path("last_message");
        LastMessage last = null;
        if (message.isObject()) {
            Position position = position(message.path("position"));
            last = new LastMessage(
                    position.getLedgerId(),
                    position.getEntryId(),
                    message.path("batch_index").asInt(),
                    message.path("publish_time").asLong());
        }
        return new CompactedView(
                answer.path("generation").asLong(),
                position(answer.path("horizon")),
                last,
                position(answer.path("first")));
    }

    /** Returns the position {@code ledger:entry} of an answer; null: it has none. */
    static Position position(JsonNode text) {
        if (!text.isTextual()) {
            return null;
        }
        String[] parts = text.asText().split(":");
        return PositionFactory.create(Long.parseLong(parts[0]), Long.parseLong(parts[1]));
    }

    Map<String, Long> properties() {
        if (horizon == null) {
            return Map.of(GENERATION, 0L);
        }
        if (last == null) {
            return Map.of(
                    GENERATION, generation,
                    HORIZON_LEDGER, horizon.getLedgerId(),
                    HORIZON_ENTRY, horizon.getEntryId());
        }
        return Map.of(
                GENERATION, generation,
                HORIZON_LEDGER, horizon.getLedgerId(),
                HORIZON_ENTRY, horizon.getEntryId(),
                LAST_LEDGER, last.ledgerId(),
                LAST_ENTRY, last.entryId(),
                LAST_INDEX, (long) last.batchIndex(),
                LAST_TIME, last.publishTime());
    }

    /** Returns whether this view, which is newer than another one, covers less than that: the service lost runs. */
    boolean coversLessThan(CompactedView other) {
        return other != null && other.horizon != null && (horizon == null || horizon.compareTo(other.horizon) < 0);
    }

    /** Returns whether this view is of a later compaction than another one. */
    boolean isNewerThan(CompactedView other) {
        return other == null || generation > other.generation;
    }
}
