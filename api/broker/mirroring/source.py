"""The source of a mirror: a topic in Kafka, the connection to its brokers, and the treatment of its empty values.

    kafka://broker-1:9092,broker-2:9092/users        any brokers of the cluster; they name the others

A password is never part of it: `password_from` names a variable of the environment, `env:NAME`, or a file,
`file:/path`, of the process that mirrors. It is read for each connection, so it can be changed while a mirror runs.

Raises InvalidInput for what cannot be meant, Misconfigured for a password or certificate that cannot be read. Must not
know: Kafka's protocol.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from api.formats.inputs import EmptyValues
from storage.errors import InvalidInput, Misconfigured

DEFAULT_PORT = 9092
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_URL = re.compile(r"kafka://(?P<brokers>[^/]+)/(?P<topic>[a-zA-Z0-9._-]{1,249})", re.ASCII)
_BROKER = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?", re.ASCII)
_URL_REMEDY = "give kafka://HOST:PORT/TOPIC, with more brokers after commas: kafka://a:9092,b:9092/users"
_REFERENCE_REMEDY = "name a variable of the environment, env:NAME, or a file, file:/path"


@dataclass(frozen=True)
class MirrorOptions:
    """Options of a mirror: TLS, SASL and empty values. `tls_ca`: a PEM file of certificate authorities; empty: those
    of the system. `sasl`: the mechanism; empty: no authentication."""

    tls: bool = False
    tls_ca: str = ""
    sasl: str = ""
    username: str = ""
    password_from: str = ""
    empty_values: str = EmptyValues.REFUSE.value

    def __post_init__(self) -> None:
        """Raise InvalidInput for options that contradict each other, or an unknown value."""
        if self.empty_values not in set(EmptyValues):
            raise InvalidInput(f"{self.empty_values!r} is no treatment of empty values", "give refuse or delete")
        if self.tls_ca and not self.tls:
            raise InvalidInput("a certificate authority is named, and no TLS", "switch TLS on, too")
        if self.sasl and self.sasl not in SASL_MECHANISMS:
            choice = ", ".join(SASL_MECHANISMS)
            raise InvalidInput(f"{self.sasl!r} is no SASL mechanism here", f"choose one of {choice}")
        if len({bool(self.sasl), bool(self.username), bool(self.password_from)}) > 1:
            raise InvalidInput(
                "of SASL mechanism, user name and source of the password only some are given", "give all three, or none"
            )
        if self.password_from and not self.password_from.startswith(("env:", "file:")):
            raise InvalidInput("the source of the password is neither a variable nor a file", _REFERENCE_REMEDY)

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> MirrorOptions:
        """Return options from their JSON form in the database or a request. Raises InvalidInput."""
        return cls(**options)

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON values for the database or a response. They contain no secret."""
        return asdict(self)

    @property
    def security_protocol(self) -> str:
        """Return Kafka's `security.protocol`: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, which verifies host names; None: TLS is off. Raises Misconfigured."""
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.tls_ca or None)
        except (OSError, ValueError) as error:
            raise Misconfigured(
                f"the certificate authorities in {self.tls_ca} cannot be read ({type(error).__name__})",
                "name a PEM file that the process that mirrors can read",
                is_public=True,
            ) from error

    def password(self) -> str:
        """Read the SASL password from its environment variable or file. Raises Misconfigured."""
        kind, _, name = self.password_from.partition(":")
        if kind == "env":
            value = os.environ.get(name)
            if value is None:
                raise Misconfigured(
                    f"the variable {name} of the environment, which a mirror's password is in, is not set",
                    "set it for the process that mirrors, and start that again",
                    is_public=True,
                )
            return value
        try:
            return Path(name.removeprefix("//")).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise Misconfigured(
                f"the file {name}, which a mirror's password is in, cannot be read ({type(error).__name__})",
                "make it a text file that the process that mirrors can read",
                is_public=True,
            ) from error


@dataclass(frozen=True)
class MirrorSource:
    """A topic in Kafka that is mirrored. `brokers`: host and port of each bootstrap broker."""

    brokers: tuple[tuple[str, int], ...]
    topic: str
    options: MirrorOptions

    @classmethod
    def parse(cls, url: str, options: MirrorOptions) -> MirrorSource:
        """Parse `kafka://HOST:PORT,…/TOPIC`. Raises InvalidInput, whose message does not repeat a password."""
        if "@" in url:
            raise InvalidInput(
                "the URL of a mirror's source has a user or password", f"leave them out: {_REFERENCE_REMEDY}"
            )
        match = _URL.fullmatch(url)
        brokers = [_BROKER.fullmatch(text) for text in match["brokers"].split(",")] if match else []
        if match is None or match["topic"] in (".", "..") or not all(brokers):
            raise InvalidInput(f"{url!r} is no topic of Kafka", _URL_REMEDY)
        named = tuple((item["host"].strip("[]"), int(item["port"] or DEFAULT_PORT)) for item in brokers if item)
        if not all(0 < port < 1 << 16 for _, port in named):
            raise InvalidInput(f"{url!r} names a port that does not exist", _URL_REMEDY)
        return cls(named, match["topic"], options)

    @property
    def url(self) -> str:
        """Return the source as `kafka://HOST:PORT,…/TOPIC`, the form that `parse` reads."""
        brokers = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.brokers)
        return f"kafka://{brokers}/{self.topic}"
