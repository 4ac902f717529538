"""How a producer's row reaches the server, whatever its application has registered for texts.

Rows go to the server as texts (`relay.adapters.postgres.array`). An application may tell psycopg to write every
`str` in a way of its own, for one connection or for all. So these texts have a type of their own, which psycopg
writes as it does by itself.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat
from psycopg.types.string import StrDumperUnknown

from relay.domain.errors import UnsupportedTarget


class RowText(str):
    """A value of a row. The statement says its type."""

    __slots__ = ()


class _TextDumper(StrDumperUnknown):
    def dump(self, obj: str) -> Buffer | None:
        """As psycopg. Raises UnsupportedTarget if the connection cannot carry it."""
        try:
            return super().dump(obj)
        except UnicodeEncodeError:
            raise UnsupportedTarget(
                f"the connection's client_encoding is {self._encoding}, which lacks a character of this row",
                field="target",
                hint="set client_encoding to UTF8",
            ) from None


def teach(driver: Any) -> None:
    """Make a connection of psycopg write `RowText`; one of asyncpg needs nothing."""
    if isinstance(driver, psycopg.BaseConnection):
        try:
            known = driver.adapters.get_dumper(RowText, PyFormat.AUTO) is _TextDumper
        except psycopg.ProgrammingError:  # an application may take str away
            known = False
        if not known:
            driver.adapters.register_dumper(RowText, _TextDumper)
