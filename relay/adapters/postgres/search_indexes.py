"""The indexes by which events are found by fields of their payloads. `relay db index` makes them.

They are no part of the schema: each deployment says which fields it searches. An index is built without blocking
writers, and outside of a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from psycopg import sql

from relay.adapters.postgres.pool import Source

_PREFIX: Final = "idx_outbox_search_"
#: An index takes no long text: so many characters of a value count.
_LONGEST: Final = 200
_FOUND: Final = sql.SQL("left(payload #>> {path}::text[], {longest})")
#: So many of the newest events that are not published are read.
_UNPUBLISHED: Final = 10_000
_NEWEST: Final = """
SELECT id
FROM ((SELECT id, seq
       FROM outbox_events
       WHERE {matches} AND published_at IS NOT NULL
       ORDER BY seq DESC
       LIMIT %(limit)s)
      UNION ALL
      (SELECT id, seq
       FROM (SELECT id, seq, event_type, payload
             FROM outbox_events
             WHERE published_at IS NULL
             ORDER BY occurred_at DESC
             LIMIT {unpublished}) AS newest
       WHERE {matches})) AS found
ORDER BY seq DESC
LIMIT %(limit)s
"""
_MAKING: Final = """
CREATE INDEX CONCURRENTLY {name} ON outbox_events (({found}), seq)
WHERE event_type = {type} AND published_at IS NOT NULL
"""
_THERE: Final = """
SELECT c.relname, i.indisvalid
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = 'outbox_events'::regclass AND starts_with(c.relname, %(prefix)s)
"""


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """What was done: names of fields whose index was made, and of indexes that were dropped."""

    made: Sequence[str]
    dropped: Sequence[str]


def name_of(event_type: str, path: str) -> str:
    """The name of the index for a field of an event type."""
    return _PREFIX + blake2b(f"{event_type} {path}".encode(), digest_size=8).hexdigest()


def found_by(event_type: str, path: str) -> sql.Composed:
    """The statement for the ids of the newest events with a ``value`` in a field; ``limit``: of them at most.

    The index has published events only: so each event costs one entry, not a second one when it is published.
    Of the others, the newest are read.
    """
    parts = {
        "matches": sql.SQL("event_type = {type} AND {found} = left(%(value)s::text, {longest})").format(
            type=sql.Literal(event_type), found=_expression(path), longest=sql.Literal(_LONGEST)
        ),
        "unpublished": sql.Literal(_UNPUBLISHED),
    }
    return sql.SQL(_NEWEST).format(**parts)


def _expression(path: str) -> sql.Composed:
    return _FOUND.format(path=sql.Literal("{" + path.replace(".", ",") + "}"), longest=sql.Literal(_LONGEST))


async def arrange(source: Source, wanted: Mapping[str, Sequence[str]]) -> IndexChanges:
    """Make the indexes that are missing or were interrupted, and drop those of fields that nobody searches.

    ``wanted``: fields by event type. May be repeated. Raises DatabaseUnreachable and SchemaMissing.
    """
    names = {name_of(type_, path): (type_, path) for type_, paths in wanted.items() for path in paths}
    made, dropped = list[str](), list[str]()
    async with source() as conn:
        there = dict(await (await conn.execute(_THERE, {"prefix": _PREFIX})).fetchall())
        for name, valid in there.items():
            if name not in names or not valid:
                await conn.execute(sql.SQL("DROP INDEX CONCURRENTLY {}").format(sql.Identifier(name)))
                if name not in names:
                    dropped.append(name)
        for name, (type_, path) in names.items():
            if there.get(name):
                continue
            asked = sql.SQL(_MAKING).format(
                name=sql.Identifier(name), found=_expression(path), type=sql.Literal(type_)
            )
            await conn.execute(asked)
            made.append(f"{type_}.{path}")
    return IndexChanges(made, dropped)
