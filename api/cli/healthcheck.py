"""Health check of the service in this container, for HEALTHCHECK of the image: `python -m api.cli.healthcheck`.

It asks for `/livez` with the scheme, address and port that the service's own settings name (environment and file).
The certificate is not verified: it need not name the loopback address, and no secret is sent. Exit code 0 or 1; the
reason is one line on stderr. It must not know what the service does.
"""

from __future__ import annotations

import http.client
import ssl
import sys

from api.settings.settings import Settings
from storage.errors import CompactorError

_SECONDS = 4.0
_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def check(settings: Settings) -> str | None:
    """Ask the service whether it is alive; return the reason if it is not, else None."""
    host = _ANY_ADDRESS.get(settings.host, settings.host)
    connection = _connection(host, settings.port, encrypted=bool(settings.tls_certificate))
    try:
        connection.request("GET", "/livez", headers={"Connection": "close"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{settings.port} does not answer: {error}"
    finally:
        connection.close()
    return None if status == http.client.OK else f"{host}:{settings.port} answers {status}"


def _connection(host: str, port: int, *, encrypted: bool) -> http.client.HTTPConnection:
    if not encrypted:
        return http.client.HTTPConnection(host, port, timeout=_SECONDS)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)


def main() -> int:
    """Check the service of these settings; return the exit code."""
    try:
        reason = check(Settings.load())
    except CompactorError as error:
        reason = str(error)
    if reason is None:
        return 0
    sys.stderr.write(f"{reason}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
