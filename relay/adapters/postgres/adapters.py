"""How our sessions read and write values, whatever else the process or the server says.

An application may register loaders with psycopg for the whole process. A database, a role or the environment may
set how times are written, or that transactions only read. Our statements would then get values that they cannot
read, or would fail. So each of our sessions has adapters of its own, and says what it needs when it connects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.dbapi20 import register_dbapi20_adapters
from psycopg.postgres import register_default_adapters, register_default_types, types
from psycopg.pq import Format
from psycopg.types import TypesRegistry
from psycopg.types.array import register_all_arrays
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import set_json_dumps, set_json_loads

from relay.domain.foreign_json import read_json
from relay.domain.moments import EARLIEST, LATEST, nearest, outside


class _Context:
    """What psycopg registers adapters in, and reads them from."""

    def __init__(self, adapters: AdaptersMap, connection: Any = None) -> None:
        self.adapters, self.connection = adapters, connection


def _usual() -> AdaptersMap:
    """Psycopg's adapters as they come with it, made by the steps of its own package."""
    known = TypesRegistry()
    register_default_types(known)
    context = _Context(AdaptersMap(types=known))
    register_default_adapters(context)
    register_dbapi20_adapters(context)
    register_all_arrays(context)
    return context.adapters


_USUAL: Final = _usual()
_USUAL_TIME: Final = _USUAL.get_loader(types["timestamptz"].oid, Format.TEXT) or TimestamptzLoader
#: The longest age that a time can have, in seconds.
_LONGEST_S: Final = (LATEST - EARLIEST).total_seconds()


class _Time(Loader):
    """Loads any timestamp of PostgreSQL. One that Python cannot hold becomes the nearest that it can.

    A producer may write any time, for example "-infinity". Such a row must not make other rows unreadable.
    """

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._usual = _USUAL_TIME(oid, context)

    def load(self, data: Buffer) -> datetime:
        try:
            found: datetime = self._usual.load(data)
        except psycopg.DataError:
            return outside(bytes(data).decode())
        return nearest(found)


class _Finite(Loader):
    """Loads any number of PostgreSQL. An endless one, such as the age of an endless time, becomes a large one."""

    def load(self, data: Buffer) -> float:
        found = float(bytes(data))
        return max(-_LONGEST_S, min(found, _LONGEST_S))


def _ours() -> AdaptersMap:
    context = _Context(AdaptersMap(_USUAL))
    context.adapters.register_loader("timestamptz", _Time)
    context.adapters.register_loader("float8", _Finite)
    set_json_loads(read_json, context)
    set_json_dumps(json.dumps, context)
    return context.adapters


OURS: Final = _ours()


def context() -> AdaptContext:
    """What a new connection of ours takes its adapters from."""
    return _Context(OURS)


def reading(connection: Any) -> AdaptContext:
    """Read values of a connection as ours, also those of one that is lent to functions."""
    return _Context(OURS, connection)


#: Text on every session of ours. The environment may name another encoding.
ENCODING: Final[Mapping[str, str]] = {"client_encoding": "UTF8"}
