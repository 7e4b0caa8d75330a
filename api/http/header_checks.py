"""Checks of every request's headers: their size, their framing, and the names of sites.

    headers   request line and headers together are at most `limits.header-bytes`: 431
    host      `Host` is a name or an address, with or without a port, so that URLs can be made of it: 400
    framing   a request has Content-Length or Transfer-Encoding, because with both, two servers read it differently:
              400, and the connection ends
    names     without access control any process that reaches loopback may do everything, also a browser on the
              machine. So `Host` must name this service: loopback, `host`, `advertised-url` or one of `allowed-hosts`.
              `Origin`, if present, must be equal to it. A page whose domain resolves to 127.0.0.1 (DNS rebinding)
              sends another `Host`: 403

With access control names are not checked, because a browser sends no token by itself. Pure.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import Scope

from api.http.problems import RestException
from api.settings.settings import Settings

_LINE_BYTES = len(b": \r\n")


@dataclass(frozen=True)
class HeaderRules:
    """The rules for the headers of a request: their size, their framing, and the sites that they name.

    `hosts`: names of this service besides loopback's; None: the sites are not checked.
    """

    max_header_bytes: int
    hosts: frozenset[str] | None

    @classmethod
    def from_settings(cls, settings: Settings) -> HeaderRules:
        """Return the rules for headers that the settings describe."""
        if settings.has_access_control:
            return cls(settings.limits_header_bytes, None)
        names = (settings.host, urlsplit(settings.url).hostname, *settings.allowed_hosts)
        return cls(settings.limits_header_bytes, frozenset(name.lower().strip("[]") for name in names if name))

    def refusal(self, scope: Scope, *, check_sites: bool) -> RestException | None:
        """Return the error for a request whose headers break a rule; None: they break none. `check_sites`: check also
        Host and Origin."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        line = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        size = line + sum(len(name) + len(value) + _LINE_BYTES for name, value in headers)
        if size > self.max_header_bytes:
            return RestException(431, f"request line and headers are larger than {self.max_header_bytes} bytes", _CLOSE)
        named = {name for name, _ in headers}
        if {b"content-length", b"transfer-encoding"} <= named:
            return RestException(400, "a request has Content-Length or Transfer-Encoding, not both", _CLOSE)
        if check_sites and self.hosts is not None and (refusal := self._site_refusal(headers)):
            return refusal
        if not all(_is_valid_host(value) for name, value in headers if name == b"host"):
            return RestException(400, "the header Host is no host name or address", _CLOSE)
        return None

    def _site_refusal(self, headers: list[tuple[bytes, bytes]]) -> RestException | None:
        """Return the error (403) for a request whose Host or Origin names another site; None: it names this service."""
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        if all(map(self._names_this_service, hosts)) and all(
            self._names_this_service(site) and site in hosts
            for site in (origin.partition(b"://")[2] for origin in origins)
        ):
            return None
        return RestException(
            403,
            "the request names another site, as the page of one does, and without tokens only this service's names "
            "are answered: set advertised-url, or allowed-hosts, to the name that a proxy gives it",
        )

    def _names_this_service(self, host: bytes) -> bool:
        """Return whether a `Host` names this service. Any other name can be made to resolve to this address."""
        assert self.hosts is not None
        try:
            name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
            return name in self.hosts or name == "localhost" or ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def _is_valid_host(value: bytes) -> bool:
    """Return whether the value of a Host header is a name or an address, with or without a port."""
    text = value.decode("latin-1")
    try:
        parts = urlsplit(f"//{text}")
        return parts.netloc == text and "@" not in text and (parts.port is None or parts.port >= 0)
    except ValueError:
        return False


_CLOSE = {"Connection": "close"}
