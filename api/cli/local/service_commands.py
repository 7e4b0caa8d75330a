"""`compactor serve`, `compactor store check`, `compactor store adopt` and `compactor db upgrade`."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.kit.program import check_confirmation
from api.cli.kit.stderr import say
from api.cli.kit.terminal import put
from api.components import open_environment, open_metadata, open_object_store


def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to bind to [COMPACTOR_HOST]")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port; 0: any that is free [COMPACTOR_PORT]")
    ] = None,
    broker_service_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="Port of Pulsar's protocol; 0: any that is free [COMPACTOR_BROKER_SERVICE_PORT]",
        ),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate: serve HTTPS [COMPACTOR_TLS_CERTIFICATE]")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its private key [COMPACTOR_TLS_KEY]")] = None,
) -> None:
    """Serve the admin REST API and Pulsar's clients, and compact by itself."""
    from api import server

    flags = {"host": host, "port": port, "broker_service_port": broker_service_port}
    server.serve(context.obj.with_flags(**flags, tls_certificate=tls_certificate, tls_key=tls_key))


def check_store(context: typer.Context) -> None:
    """Test the object store.

    Tests everything that compactor relies on, races included, and removes the objects of the test.
    """
    store = open_object_store(context.obj)
    try:
        report = store.check()
    finally:
        store.close()
    for capability in report.capabilities:
        put(f"{'ok' if capability.held else 'BROKEN':8}{capability.name}: {capability.finding}")
    report.require()
    put(f"{report.url} can serve as object store")


def adopt_store(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Bind them; without this, only show the present binding.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also if the store lacks an object that the database names.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the present binding; so does leaving out --yes.")
    ] = False,
) -> None:
    """Use this object store with this database from now on.

    A database identifies its store by the object `store.uid`, and writes to no other one. After a move of the objects
    without it, or when the database was created again or restored from a backup, this binds the two again.
    """
    check_confirmation(yes, dry_run)
    with open_environment(context.obj) as environment:
        from storage.store_identity import StoreIdentity

        identity = StoreIdentity(environment.metadata, environment.store)
        if yes:
            identity.adopt(force=force)
        adoption = identity.adoption()
        database = environment.metadata.url
    put(f"{adoption.url}: {'no uid' if adoption.store_uid is None else f'uid {adoption.store_uid}'}")
    bound = "no store" if adoption.database_uid is None else f"the store with the uid {adoption.database_uid}"
    put(f"{database}: {bound}")
    if adoption.known_object is not None:
        put(f"{adoption.known_object}: {'is there' if adoption.has_object else 'is NOT there'}")
    if yes:
        say("They belong together now")
    elif adoption.is_bound:
        say("They belong together: nothing is to be done")
    else:
        say("Nothing was changed: give --yes if they are to belong together")


def upgrade_database(context: typer.Context) -> None:
    """Bring the database to the newest schema.

    Does nothing if the schema is the newest.
    """
    metadata = open_metadata(context.obj)
    try:
        metadata.upgrade()
        put(f"{metadata.url} has the newest schema")
    finally:
        metadata.close()
