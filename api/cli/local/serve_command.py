"""`compactor serve`: the service, until SIGTERM or Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer


def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to bind to [COMPACTOR_HOST]")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port; 0: any that is free [COMPACTOR_PORT]")
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate: serve HTTPS [COMPACTOR_TLS_CERTIFICATE]")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its private key [COMPACTOR_TLS_KEY]")] = None,
) -> None:
    """Serve the admin REST API, and compact by itself."""
    from api import server

    server.serve(context.obj.with_flags(host=host, port=port, tls_certificate=tls_certificate, tls_key=tls_key))
