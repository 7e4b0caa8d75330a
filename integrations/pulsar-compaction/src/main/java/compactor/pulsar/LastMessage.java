package compactor.pulsar;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.impl.EntryImpl;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.api.proto.SingleMessageMetadata;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.compaction.TopicCompactionService;

/**
 * The last message of a compacted ledger.
 *
 * @param batchIndex -1: it is in no batch, or alone in one
 */
record LastMessage(long ledgerId, long entryId, int batchIndex, long publishTime) {

    /** Returns it as brokers of 4.2 and newer want it, which have that class. */
    static Object messagePosition(LastMessage last) {
        return last == null
                ? TopicCompactionService.MessagePosition.EARLIEST
                : new TopicCompactionService.MessagePosition(
                        last.ledgerId, last.entryId, last.batchIndex, last.publishTime);
    }

    /**
     * Returns an entry from which a broker of 4.0 reads the position, the batch index and the publish time. It has
     * nothing of the stored entry, so no request is needed for it.
     */
    Entry entry() {
        MessageMetadata metadata = new MessageMetadata()
                .setProducerName("compactor")
                .setSequenceId(0)
                .setPublishTime(publishTime);
        ByteBuf payload = Unpooled.buffer();
        if (batchIndex >= 0) {
            // A broker counts the slots that are not compacted out, and takes a batch of one for none.
            int slots = Math.max(2, batchIndex + 1);
            metadata.setNumMessagesInBatch(slots);
            for (int slot = 0; slot < slots; slot++) {
                SingleMessageMetadata single = new SingleMessageMetadata().setCompactedOut(slot != batchIndex);
                Commands.serializeSingleMessageInBatchWithPayload(single, Unpooled.EMPTY_BUFFER, payload);
            }
        }
        ByteBuf data = Commands.serializeMetadataAndPayload(Commands.ChecksumType.Crc32c, metadata, payload);
        payload.release();
        Entry entry = EntryImpl.create(ledgerId, entryId, data);
        data.release();
        return entry;
    }
}
