"""The PostgreSQL server, for the schema's tests."""

from tests.servers.fixtures_postgres import postgres_server

__all__ = ["postgres_server"]
