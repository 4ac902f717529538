"""Closes the tables of a context while it moves to another database, compares both, and opens the new ones.

A closed table refuses every change, as that of a server which only reads does: so workers wait as in an outage,
and applications get PostgreSQL's error. A copy of closed tables is closed, too, and only one of them is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql
from psycopg.errors import InsufficientPrivilege, LockNotAvailable

from relay.adapters.postgres.grants import TABLES
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
    USING ERRCODE = '25006', HINT = 'relay context open';
END $$"""
_ALONE: Final = "REVOKE ALL ON FUNCTION relay_refuse_closed() FROM PUBLIC"
_CLOSE: Final = """\
CREATE OR REPLACE TRIGGER relay_closed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION relay_refuse_closed()"""
_NOTE: Final = "COMMENT ON FUNCTION relay_refuse_closed() IS {note}"
_OPEN: Final = "DROP FUNCTION IF EXISTS relay_refuse_closed() CASCADE"
_HERE, _MOVED = "closed in ", "moved from "


@dataclass(frozen=True, slots=True)
class Closing:
    """Whether tables are closed; if so, whether by a command here or as a copy, and whether they have moved."""

    closed: bool
    here: bool = False
    moved: bool = False


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
                    await audit(conn, "context.close", [], by)
                    for text in (_REFUSE, _ALONE):
                        await conn.execute(text)
                    for name in _CLOSED:
                        await conn.execute(sql.SQL(_CLOSE).format(table=sql.Identifier(name)))
                    await _note(conn, _HERE)
            except LockNotAvailable as error:
                text = "a transaction that writes is open for longer than 5 s"
                raise NotMovable(text, hint="relay doctor names it; then close again") from error
            except InsufficientPrivilege as error:
                raise _no_owner() from error
        return True

    async def leave(self) -> None:
        """Note that the context has moved away: these tables stay closed."""
        async with self._source() as conn:
            try:
                await _note(conn, _MOVED)
            except InsufficientPrivilege as error:
                raise _no_owner() from error

    async def open(self, by: Operator) -> None:
        """Take changes again."""
        async with self._source() as conn:
            try:
                async with conn.transaction():
                    await conn.execute(_OPEN)
                    await audit(conn, "context.open", [], by)
            except InsufficientPrivilege as error:
                raise _no_owner() from error

    async def has_persons(self) -> bool:
        """Whether there are keys of persons. What they encrypted names this context."""
        async with self._source() as conn:
            count, _ = await _digest(conn, "subject_keys")
        return bool(count)

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
        """The last number of each sequence."""
        async with self._source() as conn:
            return {name: int(number) for name, number in await query(conn, "closing/numbers")}


async def differences(old: PostgresClosing, new: PostgresClosing, progress: Progress = nobody) -> Sequence[str]:
    """What two databases of a context do not have in common, a line each."""
    theirs, ours = await old.contents(progress), await new.contents(progress)
    lines = []
    for name, (count, digest) in theirs.items():
        here, same = ours[name]
        if (count, digest) != (here, same):
            what = f"{count} rows, and {here} in the new one" if count != here else f"{count} rows, other contents"
            lines.append(f"{name}: {what}")
    numbers = await new.numbers()
    for name, number in (await old.numbers()).items():
        if numbers.get(name, 0) < number:
            lines.append(f"{name}: {number}, and {numbers.get(name, 0)} in the new one")
    return lines


async def _state(conn: Connection) -> Closing:
    [(closed, note, identity)] = await query(conn, "closing/state")
    note = note or ""
    return Closing(closed, here=note == f"{_HERE}{identity}", moved=note.startswith(_MOVED))


async def _digest(conn: Connection, table: str) -> tuple[int, str]:
    cursor = await conn.execute(sql.SQL(statement("closing/digest")).format(table=sql.Identifier(table)))
    [(count, digest)] = await cursor.fetchall()
    return int(count), str(digest)


async def _note(conn: Connection, what: str) -> None:
    [(_, _, identity)] = await query(conn, "closing/state")
    await conn.execute(sql.SQL(_NOTE).format(note=sql.Literal(f"{what}{identity}")))


def _no_owner() -> ConfigurationError:
    return ConfigurationError("only the owner of the tables may close and open them", hint="as `relay db upgrade`")
