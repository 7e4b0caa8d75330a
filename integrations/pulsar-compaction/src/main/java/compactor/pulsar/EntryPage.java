package compactor.pulsar;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.impl.EntryImpl;

/**
 * A page of compacted entries: all that the compacted ledger has from one position to the page's last entry, or to the
 * horizon.
 *
 * <p>The entries that it hands out share its bytes.
 */
final class EntryPage {
    /** The most bytes that are asked for; a single entry may have more. */
    static final int MOST_BYTES = 4 << 20;
    private static final int HEAD = 20;
    private final Position from;
    private final boolean isLast;
    private final byte[] frames;
    private final long[] ledgerIds;
    private final long[] entryIds;
    private final int[] starts;

    /**
     * Parses the frames of an answer: ledger id (8), entry id (8), size (4) and bytes of each entry.
     *
     * @param isLast no entry is left after the page
     */
    static EntryPage parse(Position from, byte[] frames, boolean isLast) {
        ByteBuffer buffer = ByteBuffer.wrap(frames);
        List<Integer> starts = new ArrayList<>();
        while (buffer.hasRemaining()) {
            int start = buffer.position();
            if (buffer.remaining() < HEAD) {
                throw cut(from, frames);
            }
            int size = buffer.getInt(start + 16);
            if (size < 0 || buffer.remaining() - HEAD < size) {
                throw cut(from, frames);
            }
            starts.add(start);
            buffer.position(start + HEAD + size);
        }
        return new EntryPage(from, frames, starts, isLast);
    }

    private static ServiceException cut(Position from, byte[] frames) {
        return new ServiceException(0, "the page of compacted entries from " + from + " on is cut off after "
                + frames.length + " bytes: is a proxy between the broker and the service?", null);
    }

    private EntryPage(Position from, byte[] frames, List<Integer> starts, boolean isLast) {
        this.from = from;
        this.isLast = isLast;
        this.frames = frames;
        this.starts = starts.stream().mapToInt(Integer::intValue).toArray();
        ledgerIds = new long[this.starts.length];
        entryIds = new long[this.starts.length];
        ByteBuffer buffer = ByteBuffer.wrap(frames);
        for (int number = 0; number < this.starts.length; number++) {
            ledgerIds[number] = buffer.getLong(this.starts[number]);
            entryIds[number] = buffer.getLong(this.starts[number] + 8);
        }
    }

    boolean isEmpty() {
        return starts.length == 0;
    }

    /** Returns whether no entry is left after it. */
    boolean isLast() {
        return isLast;
    }

    int size() {
        return starts.length;
    }

    long bytes() {
        return frames.length + 20L * starts.length + 100;
    }

    /** Returns the position after the last entry. The page is not empty. */
    Position next() {
        return PositionFactory.create(ledgerIds[starts.length - 1], entryIds[starts.length - 1] + 1);
    }

    /** Returns whether the first entry from a position on is in this page, or known not to be. */
    boolean holds(Position position) {
        return from.compareTo(position) <= 0 && (isLast || !isEmpty() && position.compareTo(next()) < 0);
    }

    /** Returns the number of the first entry from a position on. */
    int index(Position position) {
        int low = 0;
        int high = starts.length;
        while (low < high) {
            int middle = (low + high) >>> 1;
            int order = Long.compare(ledgerIds[middle], position.getLedgerId());
            if (order < 0 || order == 0 && entryIds[middle] < position.getEntryId()) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }

    /** Returns at most {@code count} entries from a position on. The caller releases them. */
    List<Entry> entries(Position position, int count) {
        int first = index(position);
        int end = Math.min(starts.length, first + count);
        List<Entry> entries = new ArrayList<>(end - first);
        for (int number = first; number < end; number++) {
            int start = starts[number] + HEAD;
            int stop = number + 1 < starts.length ? starts[number + 1] : frames.length;
            ByteBuf data = Unpooled.wrappedBuffer(frames, start, stop - start);
            entries.add(EntryImpl.create(ledgerIds[number], entryIds[number], data));
            data.release();
        }
        return entries;
    }
}
