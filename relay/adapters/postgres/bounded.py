"""Rows for people: of every value only so much as a person reads, however large it is in the table.

A few bytes of a row can be a text of a hundred megabytes: compressed text, or numbers of JSON with a hundred
thousand digits. So the server measures and cuts each value before it is sent. It unpacks a value for that only if
this is quick.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql
from psycopg.errors import ProgramLimitExceeded, QueryCanceled
from psycopg.postgres import types

from relay.adapters.postgres.pool import Connection, query
from relay.adapters.postgres.sql import statement
from relay.domain.errors import PayloadTooLarge


@dataclass(frozen=True, slots=True)
class Cut:
    """How much is shown. ``names``: characters of a name; ``prose``: of a reason or a note; ``json``: bytes.

    ``unpacked``: JSON of more bytes, as the server has it in memory, is not shown at all.
    """

    names: int
    prose: int
    json: int
    unpacked: int


#: A row of a list: ids and keys have 200 bytes, and reasons 2,000 characters.
CELL: Final = Cut(names=300, prose=2_100, json=2_100, unpacked=4_200)
#: A row in the life of a message, with the notes about its attempts.
LIFE: Final = Cut(names=300, prose=2_100, json=8 * 1024, unpacked=64 * 1024)
#: The page of one row.
DETAIL: Final = Cut(names=2_100, prose=16 * 1024, json=64 * 1024, unpacked=1024**2)
#: Characters of a payload, on that page.
PAYLOAD: Final = 256 * 1024
#: A larger payload is not read. Without numbers of 100,000 digits, JSON is never so large.
LARGEST: Final = 300 * 1024**2
#: So many bytes of a payload are read at once.
_CHUNK: Final = 1024**2
#: For so long the server may look at one payload, in milliseconds.
_LIMIT_MS: Final = "5000"
_PROSE: Final = {"publish_error", "last_error", "dead_letter_reason", "error", "reason", "note", "correction"}
_TEXTS: Final = {types["text"].oid, types["varchar"].oid}
_JSON: Final = {types["jsonb"].oid, types["json"].oid}
_TOO_LARGE: Final = "(too large to be shown)"

#: By the name of a statement, its columns and their types. They are those of the tables: the same in each context.
_known: dict[str, Sequence[tuple[str, int]]] = {}


async def bounded(
    conn: Connection,
    name: str,
    parameters: Mapping[str, Any],
    cut: Cut,
    without: str = "",
    turn: Callable[[str], str] = str,
) -> sql.Composed:
    """Return a statement whose columns are cut. ``without``: a column less. ``turn``: changes its text."""
    columns = [it for it in await _columns(conn, name, parameters) if it[0] != without]
    shown = sql.SQL(", ").join(_shown(column, oid, cut) for column, oid in columns)
    return sql.SQL("SELECT {} FROM ({}) AS page").format(shown, sql.SQL(turn(statement(name))))


async def _columns(conn: Connection, name: str, parameters: Mapping[str, Any]) -> Sequence[tuple[str, int]]:
    if name not in _known:
        none = sql.SQL("SELECT * FROM ({}) AS page LIMIT 0").format(sql.SQL(statement(name)))
        found = await conn.execute(none, parameters, prepare=False)
        _known[name] = [(it.name, it.type_code) for it in found.description or ()]
    return _known[name]


def _shown(column: str, oid: int, cut: Cut) -> sql.Composable:
    it = sql.Identifier(column)
    if oid in _TEXTS:
        most = cut.prose if column in _PROSE else cut.names
        return sql.SQL("left({it}, {most}) AS {it}").format(it=it, most=sql.Literal(most))
    if oid not in _JSON:
        return it
    # The size as it is stored, then the size unpacked: what is larger would take seconds to look through.
    return sql.SQL("""
        CASE WHEN {it} IS NULL THEN {it}
             WHEN pg_column_size({it}) > {unpacked} OR pg_column_size(jsonb_build_array({it})) > {unpacked}
                  OR NOT relay_unpacks({it}) THEN to_jsonb({note}::text)
             WHEN octet_length({it}::text) > {most} THEN to_jsonb(left({it}::text, {most}) || '…')
             ELSE {it} END AS {it}
    """).format(it=it, most=cut.json, unpacked=cut.unpacked, note=sql.Literal(_TOO_LARGE))


async def beginning(conn: Connection, name: str, id: Any, body: str) -> tuple[str | bytes | None, int | None]:
    """Return the beginning of a payload, and its size in bytes. None: it cannot be unpacked, or not quickly."""
    column, most = sql.Identifier(body), sql.Literal(PAYLOAD)
    oid = dict(await _columns(conn, name, {"id": id}))[body]
    whole = sql.SQL("CASE WHEN relay_unpacks({0}) THEN {0}::text END" if oid in _JSON else "{0}").format(column)
    asked = sql.SQL(
        "SELECT substring(it FROM 1 FOR {}), octet_length(it)"
        " FROM (SELECT {} AS it FROM ({}) AS one OFFSET 0) AS body"
    ).format(most, whole, sql.SQL(statement(name)))
    try:
        async with conn.transaction():
            await query(conn, "session/limit", limit=_LIMIT_MS, local=True)
            found = await (await conn.execute(asked, {"id": id}, prepare=False)).fetchone()
    except (QueryCanceled, ProgramLimitExceeded):
        return None, None
    return found or (None, None)


async def chunks(conn: Connection, name: str, id: Any, body: str) -> AsyncIterator[bytes]:
    """Read a payload in parts, by a cursor: the server unpacks it once. Raises PayloadTooLarge."""
    column = sql.Identifier(body)
    oid = dict(await _columns(conn, name, {"id": id}))[body]
    # As bytes, that are not compressed: the server would search for each part from the beginning.
    whole = sql.SQL("convert_to({}::text, 'UTF8')" if oid in _JSON else "{} || ''::bytea").format(column)
    parts = sql.SQL(
        "SELECT octet_length(it), substring(it FROM 1 + {size} * n FOR {size})"
        " FROM (SELECT {whole} AS it FROM ({one}) AS one OFFSET 0) AS body,"
        " generate_series(0, (least(octet_length(it), {most}) - 1) / {size}) AS n"
    ).format(size=sql.Literal(_CHUNK), whole=whole, one=sql.SQL(statement(name)), most=sql.Literal(LARGEST))
    try:
        async with conn.transaction(), conn.cursor(name="payload", binary=True) as cursor:
            cursor.itersize = 1
            await cursor.execute(parts, {"id": id})
            async for size, part in cursor:
                if size > LARGEST:
                    raise _too_large()
                yield part
    except ProgramLimitExceeded:
        raise _too_large() from None


def _too_large() -> PayloadTooLarge:
    text = f"it is a text of more than {LARGEST // 1024**2} MB"
    return PayloadTooLarge(text, hint="read it in SQL: it has numbers of very many digits")
