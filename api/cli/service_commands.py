"""`compactor store check` and `compactor db upgrade`."""

from __future__ import annotations

import typer

from api.wiring import open_metadata, open_object_store


def check_store(context: typer.Context) -> None:
    """Try out the object store.

    Everything that compactor relies on, races included; the objects of the trial are removed again.
    """
    store = open_object_store(context.obj)
    try:
        report = store.check()
    finally:
        store.close()
    for capability in report.capabilities:
        print(f"{'ok' if capability.held else 'BROKEN':8}{capability.name}: {capability.finding}")  # noqa: T201
    report.require()
    print(f"{report.url} can serve as object store")  # noqa: T201


def upgrade_database(context: typer.Context) -> None:
    """Bring the database to the newest schema.

    Does nothing when it is there.
    """
    metadata = open_metadata(context.obj)
    try:
        metadata.upgrade()
        print(f"{metadata.url} has the newest schema")  # noqa: T201
    finally:
        metadata.close()
