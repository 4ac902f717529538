"""Orphans in PostgreSQL: what an outbox knows of a stream, what is noted, and what an operator decides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid4

from relay.adapters.postgres import array
from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.row_operations import audit
from relay.adapters.postgres.sql import statement
from relay.commands.adopt import Adoption
from relay.commands.reconcile import AuditedStream, Stored
from relay.domain.model import OutboxEvent
from relay.domain.operators import Operator

#: The event that names orphans to the consumers.
EVENT_TYPE: Final = "events_orphaned"


@dataclass(frozen=True, slots=True)
class OpenOrphans:
    """The orphans of a stream that are noted and wait for a decision. ``since``: when the first was stored."""

    stream: str
    count: int
    first_seq: int
    since: datetime


class PostgresOrphans:
    """OrphanLedger and OrphanRows on one context's database."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def streams(self) -> Sequence[str]:
        return [name for (name,) in await self._all("outbox/ledger_streams")]

    async def highest(self, stream: str) -> int:
        [(seq, _)] = await self._all("outbox/ledger_highest", stream=stream)
        return int(seq)

    async def gaps(self, stream: str, first: int, limit: int, count: int) -> Sequence[tuple[int, int]]:
        return await self._all("orphans/gaps", stream=stream, first=first, limit=limit, count=count)

    async def unknown(self, stream: str, events: Mapping[UUID, Stored]) -> set[UUID]:
        places = {"seqs": [it.seq for it in events.values()], "times": [it.at for it in events.values()]}
        return {id for (id,) in await self._all("orphans/unknown", stream=stream, ids=[*events], **places)}

    async def first_open(self, stream: str) -> int | None:
        [(seq,)] = await self._all("orphans/first_open", stream=stream)
        return None if seq is None else int(seq)

    async def open(self) -> Sequence[OpenOrphans]:
        """What waits for a decision, by stream. Raises DatabaseUnreachable."""
        return [OpenOrphans(*row) for row in await self._all("orphans/open")]

    async def note(
        self, stream: str, state: AuditedStream, first: int, last: int, orphans: Sequence[Stored]
    ) -> Sequence[UUID]:
        terms = _terms(stream, orphans)
        where = {"stream": stream, "begin": state.first_seq, "end": state.last_seq, "first": first, "last": last}
        async with self._source() as conn, conn.transaction():
            await conn.execute(statement("orphans/forget"), {**where, "ids": terms["ids"]})
            return [id for (id,) in await query(conn, "orphans/note", **terms)] if orphans else []

    async def adopt(self, stream: str, rows: Sequence[Adoption], by: Operator) -> set[UUID]:
        from relay.adapters.postgres.enqueue import insert  # noqa: PLC0415 - loads SQLAlchemy

        _, terms = insert([row.event for row in rows])
        terms |= {
            "part": array.of_texts([row.part for row in rows]),
            "published_at": array.of_moments([row.published_at for row in rows]),
            "published_seq": array.of_plain([row.published_seq for row in rows]),
            "generation": array.of_plain([row.generation for row in rows]),
            "published_stream": stream,
        }
        async with self._source() as conn, conn.transaction():
            ids = [id for (id,) in await query(conn, "orphans/adopt", **terms)]
            if ids:
                await _put_in_order(conn, stream, ids)
                await conn.execute(statement("orphans/adopted"), {"ids": ids})
                await audit(conn, "outbox.adopt", ids, by)
        return {*ids}

    async def report(self, stream: str, orphans: Sequence[Stored], by: Operator) -> set[UUID]:
        from relay.adapters.postgres.enqueue import insert  # noqa: PLC0415 - as above

        async with self._source() as conn, conn.transaction():
            told = {id for (id,) in await query(conn, "orphans/report", **_terms(stream, orphans))}
            if told:
                event = _event(stream, [orphan for orphan in orphans if orphan.event_id in told])
                await conn.execute(*insert([event]))
                await audit(conn, "outbox.report", [*told], by)
        return told

    async def removed(self, orphans: Sequence[Stored], by: Operator) -> None:
        async with self._source() as conn, conn.transaction():
            await audit(conn, "outbox.remove", [orphan.event_id for orphan in orphans], by)

    async def _all(self, name: str, **parameters: Any) -> list[Any]:
        async with self._source() as conn:
            return await query(conn, name, **parameters)


async def _put_in_order(conn: Connection, stream: str, ids: Sequence[UUID]) -> None:
    """Give new numbers to events of the same keys that came later, one by one, so that the order is certain."""
    later = await query(conn, "orphans/later", ids=ids, stream=stream)
    async with conn.cursor() as cursor:
        await cursor.executemany(statement("orphans/renumber"), [{"id": id} for (id,) in later])


def _terms(stream: str, orphans: Sequence[Stored]) -> dict[str, Any]:
    return {
        "ids": [orphan.event_id for orphan in orphans],
        "streams": [stream] * len(orphans),
        "seqs": [orphan.seq for orphan in orphans],
        "times": [orphan.at for orphan in orphans],
    }


def _event(stream: str, orphans: Sequence[Stored]) -> OutboxEvent:
    events = [{"id": str(it.event_id), "stream_seq": it.seq, "subject": it.subject.decode()} for it in orphans]
    return OutboxEvent(
        id=uuid4(),
        aggregate_type="stream",
        aggregate_id=stream,
        event_type=EVENT_TYPE,
        payload=json.dumps({"stream": stream, "events": events}),
        partition_key=f"stream:{stream}",
    )
