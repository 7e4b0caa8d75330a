"""Objects in a bucket of AWS S3, or of any server that speaks its protocol, below a prefix.

Create-if-absent is the server's (`If-None-Match: *`); `check_capabilities` finds out whether a server honours it.
Requests are retried with back-off, so a PUT whose answer was lost is sent again and then refused because of itself.
Hence every object carries a mark, drawn for the call that creates it, in its user metadata: a refused call reads the
object's mark, and its own mark means success. A mark proves more than equal bytes do: two writers of the same bytes
have one winner. If even the retries get no answer, the mark decides, too; only if the mark cannot be read does the call
fail, and then (`Unavailable`) the object may appear later.

boto3 clients are safe among threads, not over a fork or a pickle: a forked child creates its own, pickling is refused.
Must not know: the meaning of the bytes; credentials, which boto3 finds in the process's environment. Errors: see
s3_errors.py.
"""

from __future__ import annotations

import functools
import os
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError

from storage.advice import Advice, AdviceKind, truncated_object_advice
from storage.clock import Clock, SystemClock
from storage.errors import Misconfigured, ObjectDamaged, Unavailable
from storage.failpoints import Failpoint, failpoint
from storage.objects.capability_check import LARGE_BODY_BYTES, CapabilityReport, check_capabilities
from storage.objects.interface import (
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    StoreLocation,
    check_object_name,
    check_range,
)
from storage.objects.s3_errors import code_of, is_ambiguous, status_of, translate
from storage.objects.s3_writer import S3Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer

CONNECT_SECONDS = 5
_ATTEMPTS_WITHIN = 2
"""The attempts for a caller that cannot wait."""
MARK = "compactor-mark"


@functools.cache
def _s3_data_loader() -> Any:
    """Return botocore's description of S3, parsed once in a process: a client then takes 10 ms, not 70."""
    return botocore.session.get_session().get_component("data_loader")


@dataclass(frozen=True)
class S3Requests:
    """Settings of the requests to S3. Writers use a multipart upload from `multipart_threshold` bytes on.

    `part_bytes`: the size of all parts but the last (R2 requires equal ones). S3 allows 10 000: objects up to 312 GiB.
    `attempts`: the most tries of a request; `silence_seconds`: the longest wait for the next byte in each.
    """

    multipart_threshold: int = 64 << 20
    part_bytes: int = 32 << 20
    attempts: int = 6
    silence_seconds: float = 60


class S3Store(ObjectStore):
    """The objects at `s3://bucket/prefix`."""

    concurrent_requests = 8

    def __init__(
        self, location: StoreLocation, requests: S3Requests = S3Requests(), clock: Clock | None = None
    ) -> None:
        parts = urlsplit(location.url)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise Misconfigured(
                "the store URL is not of the form s3://bucket/prefix",  # not quoted: it may hold a password
                "write s3://bucket/prefix; credentials come from the environment, never from the URL",
            )
        self.bucket = parts.netloc
        prefix = parts.path.strip("/")
        self._prefix = prefix + "/" if prefix else ""
        self._location = location
        self._requests = requests
        self._clock = clock or SystemClock()
        self._connected: tuple[int, Any] | None = None

    @property
    def location(self) -> StoreLocation:
        return self._location

    @property
    def client(self) -> Any:
        """This process's boto3 client, created at first use. Two threads may both create one; only one stays.

        Raises Misconfigured.
        """
        connected = self._connected
        if connected is None or connected[0] != os.getpid():
            connected = self._connected = (os.getpid(), self._create_client())
        return connected[1]

    def put(self, name: str, data: Buffer) -> None:
        key, metadata = self.key(name), _new_mark()
        if memoryview(data).nbytes >= self._requests.multipart_threshold:
            with self.create(name) as writer:
                writer.write(data)
            return
        body = data if isinstance(data, bytes) else bytes(data)
        self.create_if_absent(
            name,
            metadata,
            lambda: self.client.put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*", Metadata=metadata),
        )
        failpoint(Failpoint.S3_PUT_SENT)

    def create(self, name: str) -> ObjectWriter:
        requests = self._requests
        return S3Writer(self, check_object_name(name), _new_mark(), requests.multipart_threshold, requests.part_bytes)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(name, start, length)
        if length == 0 or (length is None and start and start == self.size(name)):
            # HTTP cannot express an empty range.
            return b"" if start <= self.size(name) else self._raise_too_short(name, start, length)
        ranged = {"Range": f"bytes={start}-{'' if length is None else start + length - 1}"}
        key = self.key(name)
        with self.translating_errors(name, "read"):
            try:
                data = self._get_with_retries(key, ranged if start or length is not None else {})
            except ClientError as error:
                if code_of(error) != "InvalidRange" and status_of(error) != 416:
                    raise
                self._raise_too_short(name, start, length)
        if length is not None and len(data) < length:
            self._raise_too_short(name, start, length)
        if length is not None and len(data) > length:
            raise Misconfigured(
                f"the server of {self.url} ignored the range asked of object {name}",
                Advice(AdviceKind.REPLACE_STORE),
            )
        return data

    def size(self, name: str) -> int:
        key = self.key(name)
        with self.translating_errors(name, "read"):
            try:
                return int(self.client.head_object(Bucket=self.bucket, Key=key)["ContentLength"])
            except ClientError as error:
                if status_of(error) == 404:
                    self._check_bucket(name)
                raise

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._prefix + prefix)
        with self.translating_errors(prefix + "*", "list"):
            for page in pages:
                for item in page.get("Contents", ()):
                    name = item["Key"].removeprefix(self._prefix)
                    if name and not name.endswith("/"):  # consoles mark folders this way
                        yield ObjectInfo(name, int(item["Size"]), int(item["LastModified"].timestamp() * 1000))

    def delete(self, name: str) -> None:
        key = self.key(name)
        with self.translating_errors(name, "delete"):
            try:
                self.client.delete_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                if code_of(error) != "NoSuchKey":
                    raise

    def check_capabilities(self) -> CapabilityReport:
        in_parts = replace(self._requests, multipart_threshold=0, part_bytes=LARGE_BODY_BYTES)
        streamed = S3Store(self.location, in_parts, self._clock)
        try:
            return check_capabilities(self, streamed=streamed)
        finally:
            streamed.close()

    def with_timeout(self, seconds: float) -> ObjectStore:
        quick = replace(self._requests, attempts=_ATTEMPTS_WITHIN, silence_seconds=seconds / _ATTEMPTS_WITHIN)
        return S3Store(self.location, quick, self._clock)

    def close(self) -> None:
        if self._connected is not None and self._connected[0] == os.getpid():
            self._connected[1].close()
        self._connected = None

    def key(self, name: str) -> str:
        """Return the bucket's key of an object: the store's prefix and the object's name. Raises InvalidInput."""
        return self._prefix + check_object_name(name)

    def create_if_absent(self, name: str, metadata: dict[str, str], send: Callable[[], object]) -> None:
        """Send a request that creates the object unless it exists; return once it exists with the mark in `metadata`.

        `send`: sends the request. After 409 ConditionalRequestConflict (a racing write in flight) it is called again.
        Raises `ObjectExists` if the object has another mark, and other store errors.
        """
        for attempt in range(1, self._requests.attempts + 1):
            with self.translating_errors(name, "write"):
                try:
                    send()
                    return
                except (BotoCoreError, ClientError) as error:
                    refused = status_of(error) in (404, 412) and code_of(error) != "NoSuchBucket"
                    if (refused or is_ambiguous(error)) and self._is_marked(name, metadata[MARK]):
                        return
                    if code_of(error) != "ConditionalRequestConflict" or attempt == self._requests.attempts:
                        raise
            self.back_off(attempt)

    def back_off(self, attempt: int) -> None:
        """Wait before the next try; `attempt`: the number of the last one.

        The time grows with it up to 5 s, and is random, so that refused callers spread out.
        """
        self._clock.wait(random.uniform(0.0, min(5.0, 0.05 * 2**attempt)))  # noqa: S311

    def _is_marked(self, name: str, mark: str) -> bool:
        """Return whether the object exists and was created by the call with this mark.

        Raises botocore's errors: without an answer, neither a success nor `ObjectExists` would be true.
        """
        try:
            head = self.client.head_object(Bucket=self.bucket, Key=self.key(name))
        except ClientError as error:
            if status_of(error) == 404:
                return False
            raise
        return {key.lower(): value for key, value in head["Metadata"].items()}.get(MARK) == mark

    @contextmanager
    def translating_errors(self, name: str, verb: str) -> Iterator[None]:
        """Turn botocore's errors inside the context into the project's.

        `name`, `verb`: the object, and what is done with it, for the error's text.
        """
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise translate(error, verb, name, self.url, self.bucket) from error

    def _get_with_retries(self, key: str, ranged: dict[str, str]) -> bytes:
        """Return the bytes of an object, or of the range in `ranged`.

        botocore retries up to the headers of the answer; this method retries if the connection breaks in the body.
        """
        for attempt in range(1, self._requests.attempts + 1):
            answer = self.client.get_object(Bucket=self.bucket, Key=key, **ranged)
            try:
                # Not `with answer["Body"] as body`: that is the raw stream, which ends early without an error.
                with closing(answer["Body"]):
                    return bytes(answer["Body"].read())
            except (HTTPClientError, IncompleteReadError) as error:
                if attempt == self._requests.attempts:
                    raise Unavailable(
                        f"object {key} of bucket {self.bucket} breaks off while it is read, {error}",
                        "check the network and the server, then try again",
                    ) from error
            self.back_off(attempt)
        raise AssertionError("the last attempt returns or raises")

    def _raise_too_short(self, name: str, start: int, length: int | None) -> NoReturn:
        raise ObjectDamaged(
            f"object {name} in {self.url} is too short for start={start} length={length}",
            truncated_object_advice(name, self.url),
        )

    def _check_bucket(self, name: str) -> None:
        """Raise Misconfigured if the bucket is missing: the 404 of a HEAD does not tell bucket from object."""
        try:
            self.client.head_bucket(Bucket=self.bucket)
        except ClientError as error:
            if status_of(error) == 404:
                raise Misconfigured(
                    f"bucket {self.bucket} of {self.url} does not exist, asked to read object {name}",
                    "make the bucket, or correct the store's URL and endpoint",
                ) from error

    def _create_client(self) -> Any:
        endpoint = self._location.s3_endpoint
        config = Config(
            connect_timeout=min(CONNECT_SECONDS, self._requests.silence_seconds),
            read_timeout=self._requests.silence_seconds,
            retries={"mode": "standard", "total_max_attempts": self._requests.attempts},
            max_pool_connections=32,
            tcp_keepalive=True,
            # Checksums in trailers are newer than most servers; ledgers carry checksums of their own.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if endpoint else "auto"},
            user_agent_extra="compactor",
        )
        try:
            # A separate session: boto3's default one is not thread-safe on first use.
            session = botocore.session.get_session()
            session.register_component("data_loader", _s3_data_loader())
            return boto3.session.Session(botocore_session=session).client(
                "s3", endpoint_url=endpoint, region_name=self._location.s3_region, config=config
            )
        except (BotoCoreError, ValueError) as error:
            raise Misconfigured(
                f"cannot make an S3 client for {self.url}, {error}",
                "check endpoint (http://host:port), region and profile",
            ) from error

    def __reduce__(self) -> NoReturn:
        raise TypeError("an S3Store cannot be pickled: send its location, and open_store() it there")


def _new_mark() -> dict[str, str]:
    return {MARK: uuid.uuid4().hex}
