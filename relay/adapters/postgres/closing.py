"""Closes the tables of a context while it moves to another database, compares both, and opens the new ones.

A closed table refuses every change, as that of a server which only reads does: so workers wait as in an outage,
and applications get PostgreSQL's error. A copy of closed tables is closed, too, and only one of them is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql
from psycopg.errors import DeadlockDetected, InsufficientPrivilege, LockNotAvailable

from relay.adapters.postgres.grants import SEQUENCES, TABLES
from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.row_operations import audit
from relay.adapters.postgres.sql import statement
from relay.commands.reconcile import Progress, nobody
from relay.domain.errors import ConfigurationError, NotMovable
from relay.domain.operators import Operator

#: All but the number of the last migration, which nobody writes.
_CLOSED: Final = [name for name in TABLES if name != "relay_alembic_version"]
#: How long transactions that are open may go on.
_PATIENCE: Final = "SET LOCAL lock_timeout = '5s'"
_REFUSE: Final = """\
CREATE OR REPLACE FUNCTION relay_refuse_closed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'the tables of this context are closed: it moves to another database, or has moved'
    USING ERRCODE = '25006', CONSTRAINT = 'relay_closed', HINT = 'relay context open';
END $$"""
_ALONE: Final = "REVOKE ALL ON FUNCTION relay_refuse_closed() FROM PUBLIC"
_CLOSE: Final = """\
CREATE OR REPLACE TRIGGER relay_closed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION relay_refuse_closed()"""
_NOTE: Final = "COMMENT ON FUNCTION relay_refuse_closed() IS {note}"
_OPEN: Final = "DROP FUNCTION IF EXISTS relay_refuse_closed() CASCADE"
_REASON: Final = "closed: relay context open"
_HERE, _MOVED = "closed in ", "moved to "


@dataclass(frozen=True, slots=True)
class Closing:
    """Whether tables are closed; if so, whether by a command here or as a copy, and where they have moved.

    ``identity``: which database this is, whatever its address.
    """

    closed: bool
    identity: str = ""
    here: bool = False
    moved_to: str | None = None


class PostgresClosing:
    """Closes and opens the tables of one database, as their owner. All methods raise DatabaseUnreachable."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def state(self) -> Closing:
        """Whether the tables are closed."""
        async with self._source() as conn:
            return await _state(conn)

    async def close(self, by: Operator) -> bool:
        """Refuse every change from now on; returns whether they were open.

        Waits for open transactions. Raises NotMovable if they take longer, ConfigurationError without the right.
        """
        async with self._source() as conn:
            try:
                async with conn.transaction():
                    if (await _state(conn)).closed:
                        return False
                    await conn.execute(_PATIENCE)
                    # Reading a row for publication changes nothing, and what was published could not be marked.
                    await query(conn, "closing/pause", by=by.actor, reason=_REASON)
                    await audit(conn, "context.close", [], by)
                    for text in (_REFUSE, _ALONE):
                        await conn.execute(text)
                    for name in _CLOSED:
                        await conn.execute(sql.SQL(_CLOSE).format(table=sql.Identifier(name)))
                    await _note(conn, f"{_HERE}{(await _state(conn)).identity}")
            except (LockNotAvailable, DeadlockDetected) as error:
                text = "a transaction that writes is open for longer than 5 s"
                raise NotMovable(text, hint="relay doctor names it; then close again") from error
            except InsufficientPrivilege as error:
                raise _no_owner() from error
        return True

    async def leave(self, identity: str) -> None:
        """Note to which database the context has moved: these tables stay closed."""
        async with self._source() as conn:
            try:
                await _note(conn, f"{_MOVED}{identity}")
            except InsufficientPrivilege as error:
                raise _no_owner() from error

    async def open(self, by: Operator, numbers: Mapping[str, int]) -> None:
        """Take changes again. ``numbers``: how far sequences must have come; see `numbers`."""
        async with self._source() as conn:
            try:
                async with conn.transaction():
                    for name, number in (await _numbers(conn)).items():
                        if number < numbers.get(name, 0):
                            await query(conn, "closing/set_forward", name=name, number=numbers[name])
                    await conn.execute(_OPEN)
                    await query(conn, "closing/resume", reason=_REASON)
                    await audit(conn, "context.open", [], by)
            except InsufficientPrivilege as error:
                raise _no_owner() from error

    async def binds(self, payload_limit: int | None) -> str | None:
        """What makes messages name this context, where they find a part of themselves; None: nothing."""
        async with self._source() as conn:
            [(persons, large)] = await query(conn, "closing/bound", limit=payload_limit)
        return "personal values" if persons else "large payloads" if large else None

    async def contents(self, progress: Progress = nobody) -> Mapping[str, tuple[int, str]]:
        """The number of rows and a digest of each table."""
        found, names = {}, [*TABLES]
        async with self._source() as conn:
            await query(conn, "closing/as_text")
            for number, name in enumerate(names):
                progress(number, len(names))
                found[name] = await _digest(conn, name)
        return found

    async def numbers(self) -> Mapping[str, int]:
        """The last number of each sequence of the tables."""
        async with self._source() as conn:
            return await _numbers(conn)


async def differences(old: PostgresClosing, new: PostgresClosing, progress: Progress = nobody) -> Sequence[str]:
    """What two databases of a context do not have in common, a line each."""
    theirs, ours = await old.contents(progress), await new.contents(progress)
    lines = []
    for name, (count, digest) in theirs.items():
        here, same = ours[name]
        if (count, digest) != (here, same):
            what = f"{count} rows, and {here} in the new one" if count != here else f"{count} rows, other contents"
            lines.append(f"{name}: {what}")
    return lines


async def _state(conn: Connection) -> Closing:
    [(closed, note, identity)] = await query(conn, "closing/state")
    note = note or ""
    moved_to = note.removeprefix(_MOVED) if note.startswith(_MOVED) else None
    return Closing(closed, identity, here=note == f"{_HERE}{identity}", moved_to=moved_to)


async def _numbers(conn: Connection) -> Mapping[str, int]:
    found = await query(conn, "closing/numbers", tables=[*TABLES], sequences=[*SEQUENCES])
    return {name: int(number) for name, number in found}


async def _digest(conn: Connection, table: str) -> tuple[int, str]:
    cursor = await conn.execute(sql.SQL(statement("closing/digest")).format(table=sql.Identifier(table)))
    [(count, digest)] = await cursor.fetchall()
    return int(count), str(digest)


async def _note(conn: Connection, note: str) -> None:
    await conn.execute(sql.SQL(_NOTE).format(note=sql.Literal(note)))


def _no_owner() -> ConfigurationError:
    return ConfigurationError("only the owner of the tables may close and open them", hint="as `relay db upgrade`")
