"""Every setting, in one typed table: what it is called, what it means, what it is by default.

Origins, the first that has one wins: a flag of the command line, the environment (`COMPACTOR_…`), the default.
Values only; components (clock, store, database) are made from them in `api/wiring.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from storage.errors import Misconfigured


def _setting(default: str, env: str, doc: str) -> Any:
    return field(default=default, metadata={"env": env, "doc": doc})


@dataclass(frozen=True)
class Settings:
    """The settings of one process."""

    data: str = _setting(".compactor", "COMPACTOR_DATA", "directory of the embedded store and database")
    store: str = _setting(
        "", "COMPACTOR_STORE", "object store: file:///… or s3://bucket/prefix (default: in the data directory)"
    )
    s3_endpoint: str = _setting("", "COMPACTOR_S3_ENDPOINT", "endpoint URL of an S3 server other than AWS")
    database: str = _setting("", "COMPACTOR_DATABASE", "database URL (default: SQLite in the data directory)")
    spark_master: str = _setting("local[*]", "COMPACTOR_SPARK_MASTER", "Spark master")

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ, **flags: str | None) -> Settings:
        """From flags (None: not given), then the environment, then defaults."""
        values = {}
        for one in fields(cls):
            flag = flags.get(one.name)
            value = flag if flag is not None else environment.get(one.metadata["env"])
            if value:
                values[one.name] = value
        return cls(**values)

    @property
    def data_directory(self) -> Path:
        """The data directory, absolute."""
        return Path(self.data).expanduser().absolute()

    @property
    def store_url(self) -> str:
        """The object store's URL."""
        return self.store or (self.data_directory / "objects").as_uri()

    @property
    def database_url(self) -> str:
        """The database's URL."""
        return self.database or f"sqlite:///{self.data_directory / 'metadata.db'}"

    @property
    def embedded_database(self) -> bool:
        """Whether the database is the embedded default, which upgrades itself."""
        return not self.database

    def make_data_directory(self) -> Path:
        """The data directory, made if need be: embedded parts and Spark's log live there. Raises Misconfigured."""
        try:
            self.data_directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Misconfigured(
                f"the data directory {self.data_directory} cannot be made ({error.strerror})",
                "set COMPACTOR_DATA, or --data, to a directory that can be written",
            ) from error
        return self.data_directory
