"""Django's connections as targets, inside of ``atomic()``. The library itself is not imported here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import psycopg

from relay.adapters.postgres.enqueue import Row
from relay.adapters.postgres.on_psycopg import insert
from relay.adapters.postgres.unawaited_rows import fatal
from relay.domain.errors import NoTransaction, UnsupportedTarget

Value = TypeVar("Value")


class DjangoTarget(Protocol):
    """A connection of Django: ``django.db.connection``, or one of ``django.db.connections``."""

    @property
    def alias(self) -> str:
        """The name of its database."""

    @property
    def in_atomic_block(self) -> bool:
        """Whether an ``atomic()`` is open."""


def write(target: Any, rows: Sequence[Row]) -> None:
    """Write ``rows`` at once.

    Raises UnsupportedTarget, NoTransaction, Django's errors, and what `refusals` raises.
    """
    if getattr(target, "vendor", None) != "postgresql":
        raise UnsupportedTarget(
            "this is not a connection of Django to PostgreSQL", field="target", hint="pass django.db.connection"
        )
    if rows:
        do(target, lambda driver: insert(driver, rows))


def do(target: Any, work: Callable[[psycopg.Connection[Any]], Value]) -> Value:
    """Work on the driver's connection, in the open transaction. Raises as `write` does."""
    target.validate_thread_sharing()
    target.validate_no_broken_transaction()
    target.ensure_connection()
    driver = target.connection
    if not isinstance(driver, psycopg.Connection):
        raise UnsupportedTarget(
            "Django uses psycopg2", field="target", hint="install psycopg 3, and remove psycopg2"
        )
    if not target.in_atomic_block and target.get_autocommit():
        raise NoTransaction(
            "no transaction is open, so Django would commit the event by itself",
            field="target",
            hint="use `with transaction.atomic():` around the change and the event",
        )
    # Not through Django's cursor, which logs the parameters of statements while DEBUG is on.
    try:
        with target.wrap_database_errors:
            return work(driver)
    except Exception as error:
        if target.in_atomic_block and fatal(error):
            target.set_rollback(True)
        raise
