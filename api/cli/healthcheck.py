"""Health check of the service in this container, for HEALTHCHECK of the image: `python -m api.cli.healthcheck`.

It requests `/livez` at the scheme, address and port of the service's own settings (environment and file). The
certificate is not verified, because it need not name the loopback address, and no secret is sent. The exit code is 0 or
1; a failure prints its reason as one line on stderr. This module must not know other parts of the service.
"""

from __future__ import annotations

import http.client
import ssl
import sys

from api.settings.settings import Settings
from storage.errors import CompactorError

_SECONDS = 4.0
_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def liveness_fault(settings: Settings) -> str | None:
    """Return the reason why the service is not alive; None: it is alive."""
    host = _ANY_ADDRESS.get(settings.host, settings.host)
    connection = _http_connection(host, settings.port, encrypted=bool(settings.tls_certificate))
    try:
        connection.request("GET", "/livez", headers={"Connection": "close"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{settings.port} does not answer: {error}"
    finally:
        connection.close()
    return None if status == http.client.OK else f"{host}:{settings.port} answers {status}"


def _http_connection(host: str, port: int, *, encrypted: bool) -> http.client.HTTPConnection:
    if not encrypted:
        return http.client.HTTPConnection(host, port, timeout=_SECONDS)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)


def main() -> int:
    """Check the service of the process's settings, and return the exit code."""
    try:
        reason = liveness_fault(Settings.load())
    except CompactorError as error:
        reason = str(error)
    if reason is None:
        return 0
    sys.stderr.write(f"{reason}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
