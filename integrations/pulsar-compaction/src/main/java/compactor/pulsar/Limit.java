package compactor.pulsar;

import java.util.ArrayDeque;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;

/** Bounds the calls that run at the same time; the others wait for their turn, in the order in which they came. */
final class Limit {
    private final int most;
    private final Queue<Runnable> waiting = new ArrayDeque<>();
    private int running;
    private boolean isStarting;

    Limit(int most) {
        this.most = most;
    }

    /** Returns the result of a call, which is made at its turn. One that throws is a failed future, too. */
    <T> CompletableFuture<T> run(Supplier<CompletableFuture<T>> call) {
        CompletableFuture<T> answer = new CompletableFuture<>();
        synchronized (this) {
            waiting.add(() -> started(call).whenComplete((value, failure) -> {
                synchronized (this) {
                    running--;
                }
                startNext();
                if (failure == null) {
                    answer.complete(value);
                } else {
                    answer.completeExceptionally(failure);
                }
            }));
        }
        startNext();
        return answer;
    }

    private static <T> CompletableFuture<T> started(Supplier<CompletableFuture<T>> call) {
        try {
            return call.get();
        } catch (Throwable failure) {
            return CompletableFuture.failedFuture(failure);
        }
    }

    /** Starts what may start. A call that ends at once does not start the next one itself: that would nest without end. */
    private void startNext() {
        while (true) {
            Runnable next;
            synchronized (this) {
                if (isStarting || running == most || waiting.isEmpty()) {
                    return;
                }
                isStarting = true;
                running++;
                next = waiting.remove();
            }
            try {
                next.run();
            } finally {
                synchronized (this) {
                    isStarting = false;
                }
            }
        }
    }
}
