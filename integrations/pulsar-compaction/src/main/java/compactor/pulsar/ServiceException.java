package compactor.pulsar;

/** The service refused a request, or did not answer in time. The message says which, of which topic, and why. */
final class ServiceException extends RuntimeException {
    private static final long serialVersionUID = 1L;
    private final int status;

    /** @param status of the answer; 0: there was none */
    ServiceException(int status, String message, Throwable cause) {
        super(message, cause);
        this.status = status;
    }

    int status() {
        return status;
    }

    /** Returns whether the same request may succeed later. */
    boolean isTemporary() {
        return status == 0 || status == 408 || status == 429 || status >= 500;
    }
}
