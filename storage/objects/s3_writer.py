"""A writer of an object into S3: spooled to disk, sent in parts while it grows, created at the end or not at all.

Up to a few MiB it stays in memory, then in a temporary file (in TMPDIR). An object below the multipart threshold is a
single conditional PUT at the end. From the threshold on full parts are sent by a few threads while more is written,
each of which reads its part from the file, so memory holds at most `SENDERS` parts. The conditional
CompleteMultipartUpload creates the object. The file keeps every byte until then: S3 requires that an upload refused by
409 ConditionalRequestConflict is begun again, with all its parts.

After any failure the upload is aborted, so that no parts remain, unseen and paid for. If the abort cannot reach the
server they do remain, and a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) should end them. Errors
besides s3_errors.py: the temporary file's disk is full (`StorageFull`).
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from storage.errors import InvalidInput, StorageFull, Unavailable
from storage.failpoints import Failpoint, failpoint
from storage.objects.interface import ObjectWriter
from storage.objects.s3_errors import code_of

if TYPE_CHECKING:
    from storage.objects.s3 import S3Store

SPOOL_BYTES = 8 << 20
SENDERS = 4
MAX_PARTS = 10_000


class S3Writer(ObjectWriter):
    """A writer of one object of `store`. `metadata` holds its mark, which differs from other writers' (see s3.py).

    `threshold`: the bytes from which on it is sent in parts, of `part_bytes` each.
    """

    def __init__(self, store: S3Store, name: str, metadata: dict[str, str], threshold: int, part_bytes: int) -> None:
        super().__init__(name)
        self._store = store
        self._metadata = metadata
        self._threshold = threshold
        self._part_bytes = part_bytes
        self._spool: tempfile.SpooledTemporaryFile[bytes] | None = None
        self._upload: _MultipartUpload | None = None

    def _open(self) -> None:
        # No `with`: the file lives as long as the writer's own block does, and _discard closes it.
        self._spool = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115

    def _append(self, view: memoryview) -> None:
        assert self._spool is not None
        with _translating_spool_errors(self.name):
            self._spool.write(view)
        end = self._position + view.nbytes
        if end >= self._threshold:
            with self._store.translating_errors(self.name, "write"):
                self._send_parts(end - end % self._part_bytes, end)

    def _commit(self) -> None:
        whole = self._upload is None and self._position < max(self._threshold, 1)
        self._store.create_if_absent(self.name, self._metadata, self._put_object if whole else self._complete_upload)
        self._upload = None
        failpoint(Failpoint.S3_PUT_SENT if whole else Failpoint.S3_AFTER_COMPLETE)

    def _discard(self) -> None:
        if self._upload is not None:
            self._upload.abort()
            self._upload = None
        if self._spool is not None:
            with suppress(OSError):  # its buffered bytes may not fit on the disk, and no longer matter
                self._spool.close()
            self._spool = None

    def _put_object(self) -> None:
        assert self._spool is not None
        with _translating_spool_errors(self.name):
            self._spool.seek(0)
        self._store.client.put_object(
            Bucket=self._store.bucket,
            Key=self._store.key(self.name),
            Body=self._spool,
            IfNoneMatch="*",
            Metadata=self._metadata,
        )

    def _complete_upload(self) -> None:
        self._send_parts(self._position, self._position)
        assert self._upload is not None
        try:
            self._upload.complete()
        except ClientError as error:
            if code_of(error) == "ConditionalRequestConflict":
                self._upload.abort()
                self._upload = None  # the next try sends all parts again, as S3 requires
            raise

    def _send_parts(self, until: int, object_bytes: int) -> None:
        """Pass the parts below offset `until` that were not sent yet to the senders.

        `object_bytes`: the number of bytes that were written to the object so far.
        """
        assert self._spool is not None
        with _translating_spool_errors(self.name):
            self._spool.flush()
            descriptor = self._spool.fileno()
        if object_bytes > MAX_PARTS * self._part_bytes:
            raise InvalidInput(
                f"object {self.name} grows beyond {MAX_PARTS} parts of {self._part_bytes} bytes",
                "split it into several objects",
            )
        if self._upload is None:
            self._upload = _MultipartUpload(self._store, self.name, self._metadata, descriptor)
        self._upload.send_parts(until, self._part_bytes)


class _MultipartUpload:
    """One multipart upload: begun at construction, ended by `complete` or `abort`."""

    def __init__(self, store: S3Store, name: str, metadata: dict[str, str], descriptor: int) -> None:
        self._client = store.client
        self._where = {"Bucket": store.bucket, "Key": store.key(name)}
        self._name = name
        self._descriptor = descriptor
        begun = self._client.create_multipart_upload(**self._where, Metadata=metadata)
        self._where["UploadId"] = begun["UploadId"]
        failpoint(Failpoint.S3_UPLOAD_BEGUN)
        self._sent = 0
        self._parts: list[Future[str]] = []
        self._senders = ThreadPoolExecutor(SENDERS, "s3-part")

    def send_parts(self, until: int, part_bytes: int) -> None:
        while self._sent < until:
            length = min(part_bytes, until - self._sent)
            self._parts.append(self._senders.submit(self._send_part, len(self._parts) + 1, self._sent, length))
            self._sent += length
        for part in self._parts:
            if part.done():
                part.result()  # a part that failed ends the writing now, not at the end

    def complete(self) -> None:
        tags = [part.result() for part in self._parts]
        failpoint(Failpoint.S3_BEFORE_COMPLETE)
        self._client.complete_multipart_upload(
            **self._where,
            IfNoneMatch="*",
            MultipartUpload={"Parts": [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]},
        )
        self._senders.shutdown()

    def abort(self) -> None:
        self._senders.shutdown(cancel_futures=True)  # a part that arrives after the abort would stay
        with suppress(BotoCoreError, ClientError):
            self._client.abort_multipart_upload(**self._where)

    def _send_part(self, number: int, start: int, length: int) -> str:
        with _translating_spool_errors(self._name):
            body = os.pread(self._descriptor, length, start)
        if len(body) != length:
            raise Unavailable(
                f"the temporary file of object {self._name} lost bytes", "check the disk of TMPDIR, then try again"
            )
        answer = self._client.upload_part(**self._where, PartNumber=number, Body=body)
        failpoint(Failpoint.S3_PART_UPLOADED)
        return str(answer["ETag"])


@contextmanager
def _translating_spool_errors(name: str) -> Iterator[None]:
    """Turn the system's errors on the temporary file into the project's."""
    try:
        yield
    except OSError as error:
        what = f"cannot spool object {name} in {tempfile.gettempdir()}, {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageFull(what, "free space there or point TMPDIR to a larger disk, then try again") from error
        raise Unavailable(what, "check the disk of TMPDIR, then try again") from error
