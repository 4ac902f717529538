"""SQLAlchemy's savepoints on lazy connections: ``create_engine(DIALECT, ...)``.

This module is separate from the connections, because SQLAlchemy loads slowly and processes without Python handlers
do not need it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg

from relay.adapters.postgres.lazy import Lazy


class _LazySavepoints:
    """SQLAlchemy's savepoints, on a lazy connection."""

    def do_savepoint(self, connection: Connection, name: str) -> None:
        _driver(connection).begin_step(_begin(name))

    def do_rollback_to_savepoint(self, connection: Connection, name: str) -> None:
        if not _driver(connection).drop_step(_begin(name)):
            connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")

    def do_release_savepoint(self, connection: Connection, name: str) -> None:
        driver = _driver(connection)
        if not driver.drop_step(_begin(name)):
            driver.keep_step(b"RELEASE SAVEPOINT " + name.encode())


class LazyDialect(_LazySavepoints, PGDialect_psycopg):
    """Psycopg's dialect over a `LazyConnection` or a `LazyAsyncConnection`."""

    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, _url: Any) -> type[LazyAsyncDialect]:
        """Return the dialect for coroutines."""
        return LazyAsyncDialect


class LazyAsyncDialect(_LazySavepoints, PGDialectAsync_psycopg):
    """The same for coroutines."""

    supports_statement_cache = True


registry.register("postgresql.jetrelay", __name__, LazyDialect.__name__)
DIALECT: Final = "postgresql+jetrelay://"


def _begin(name: str) -> bytes:
    return b"SAVEPOINT " + name.encode()


def _driver(connection: Connection) -> Lazy:
    driver = connection.connection.driver_connection
    assert isinstance(driver, Lazy)
    return driver
