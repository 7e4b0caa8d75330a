"""`compactor serve`, `compactor store check`, `compactor store adopt` and `compactor db upgrade`."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit.program import reject_yes_with_dry_run
from api.cli.kit.shared_arguments import DryRun, Yes
from api.cli.kit.stderr import say
from api.cli.kit.terminal import print_line
from api.components import open_environment, open_for_reading, open_metadata, open_object_store
from api.observability.error_text import one_line
from api.settings.settings import Settings
from storage.errors import Misconfigured, Unavailable

if TYPE_CHECKING:
    from storage.objects.interface import ObjectStore


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

    Tests everything that compactor relies on, races included, and removes the objects of the test. If there is a
    database, also tests that the store is not the store of another database.
    """
    settings: Settings = context.obj
    with closing(open_object_store(settings)) as store:
        database = _database_url_after_identity_check(settings, store)
        report = store.check_capabilities()
    for capability in report.capabilities:
        print_line(f"{'ok' if capability.held else 'BROKEN':8}{capability.name}: {capability.finding}")
    if database is not None:
        print_line(f"{'ok':8}identity: not the store of another database than {database}")
    report.require()
    print_line(f"{report.url} can serve as object store")


def _database_url_after_identity_check(settings: Settings, store: ObjectStore) -> str | None:
    """Check that the store is not that of another database. Return the URL of the database; None: there is none, or it
    cannot be read, and the reason is printed.

    Raises WrongStore if the database has another store, and the errors of the store.
    """
    if settings.is_database_embedded and not settings.embedded_database_file.exists():
        return None
    with ExitStack() as opened:
        try:
            metadata = opened.enter_context(closing(open_metadata(settings)))
            metadata.store_binding.find()
        except (Misconfigured, Unavailable) as error:
            say(f"Not tested whether the store is that of the database: {one_line(error)}")
            return None
        from storage.store_identity import StoreIdentity

        StoreIdentity(metadata, store).check()
        return metadata.url


def adopt_store(
    context: typer.Context,
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also if the store lacks an object that the database names.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Use this object store with this database from now on.

    A database identifies its store by the object `store.uid`, and writes to no other store. This command binds the two
    again after a move of the objects without that object, or after the database was created again or restored from a
    backup.
    """
    reject_yes_with_dry_run(yes, dry_run)
    with (open_environment if yes else open_for_reading)(context.obj) as environment:
        from storage.store_identity import StoreIdentity

        identity = StoreIdentity(environment.metadata, environment.store)
        if yes:
            identity.adopt(force=force)
        state = identity.binding_state()
        database = environment.metadata.url
    print_line(f"{state.url}: {'no uid' if state.store_uid is None else f'uid {state.store_uid}'}")
    bound = "no store" if state.database_uid is None else f"the store with the uid {state.database_uid}"
    print_line(f"{database}: {bound}")
    if state.known_object is not None:
        print_line(f"{state.known_object}: {'is there' if state.has_object else 'is NOT there'}")
    if yes:
        say("This store and this database are bound to each other now")
    elif state.is_bound:
        say("This store and this database are bound to each other already")
    else:
        say("Nothing was changed: give --yes to bind this store and this database to each other")


def upgrade_database(context: typer.Context) -> None:
    """Bring the database to the newest schema.

    Does nothing if the schema is the newest.
    """
    with closing(open_metadata(context.obj)) as metadata:
        metadata.upgrade()
        print_line(f"{metadata.url} has the newest schema")
