"""Rows for people: of every value only so much as a person reads, however large it is in the table.

A few bytes of a row can be a text of a hundred megabytes: compressed text, or numbers of JSON with a hundred
thousand digits. So the server measures and cuts each value before it is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from psycopg import sql
from psycopg.postgres import types

from relay.adapters.postgres.pool import Connection
from relay.adapters.postgres.sql import statement

#: How many characters of a text in a list are shown, and how many bytes of JSON.
CELL: Final = 2_100
#: The same for the page of one row, and for its payload.
DETAIL: Final = 256 * 1024
#: So many characters of a payload are read at once.
_CHUNK: Final = 1024**2
_TEXTS: Final = {types["text"].oid, types["varchar"].oid}
_JSON: Final = {types["jsonb"].oid, types["json"].oid}
_TOO_LARGE: Final = "(too large to be shown)"

#: By the name of a statement, its columns and their types. They are those of the tables: the same in each context.
_known: dict[str, list[tuple[str, int]]] = {}


async def bounded(
    conn: Connection, name: str, parameters: Mapping[str, Any], most: int, body: str = ""
) -> sql.Composed:
    """Return a statement whose columns are cut to ``most`` characters or bytes.

    ``body``: the column of the payload. Beside it comes ``payload_bytes``, its whole size; None if it has numbers
    that no client reads.
    """
    if name not in _known:
        none = sql.SQL("SELECT * FROM ({}) AS page LIMIT 0").format(sql.SQL(statement(name)))
        found = await conn.execute(none, parameters, prepare=False)
        _known[name] = [(it.name, it.type_code) for it in found.description or ()]
    shown = [it for column, oid in _known[name] for it in _shown(column, oid, most, payload=column == body)]
    return sql.SQL("SELECT {} FROM ({}) AS page").format(sql.SQL(", ").join(shown), sql.SQL(statement(name)))


def _shown(column: str, oid: int, most: int, *, payload: bool) -> list[sql.Composed]:
    names = {"it": sql.Identifier(column), "most": sql.Literal(most), "note": sql.Literal(_TOO_LARGE)}
    form = "{it}"
    if oid in _TEXTS:
        form = "left({it}, {most}) AS {it}"
    elif oid in _JSON and payload:
        form = "CASE WHEN relay_unpacks({it}) THEN left({it}::text, {most}) END AS {it}"
    elif oid in _JSON:
        form = (
            "CASE WHEN {it} IS NULL OR relay_unpacks({it}) AND octet_length({it}::text) <= {most} THEN {it}"
            " ELSE to_jsonb({note}::text) END AS {it}"
        )
    elif payload:
        form = "substring({it} FOR {most}) AS {it}"
    forms = [form]
    if payload and oid in _JSON:
        forms.append("CASE WHEN relay_unpacks({it}) THEN octet_length({it}::text) END AS payload_bytes")
    elif payload:
        forms.append("octet_length({it}) AS payload_bytes")
    return [sql.SQL(it).format(**names) for it in forms]


async def chunks(conn: Connection, name: str, id: Any, body: str) -> AsyncIterator[str | bytes]:
    """Read the payload of a row in parts, by a cursor: the server unpacks it once."""
    column = sql.Identifier(body)
    [(_, oid)] = [it for it in _known[name] if it[0] == body]
    whole = sql.SQL("{}::text" if oid in _JSON else "{}").format(column)
    parts = sql.SQL(
        "SELECT substring(it FROM 1 + {size} * n FOR {size})"
        " FROM (SELECT {whole} AS it FROM ({one}) AS one OFFSET 0) AS body,"
        " generate_series(0, (length(it) - 1) / {size}) AS n"
    ).format(size=sql.Literal(_CHUNK), whole=whole, one=sql.SQL(statement(name)))
    async with conn.transaction(), conn.cursor(name="payload") as cursor:
        cursor.itersize = 1
        await cursor.execute(parts, {"id": id})
        async for (part,) in cursor:
            yield part
