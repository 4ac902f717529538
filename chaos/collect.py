"""The end of a run: wait until nothing moves any more, then record what every table and stream holds."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, LiteralString
from uuid import UUID

import nats.errors
import psycopg
from nats.js import JetStreamContext
from nats.js.api import ConsumerInfo
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from chaos.deployment import BESIDE, LETTER_READER, LETTERS, STREAM, TWIN_STREAM
from chaos.history import (
    Business,
    ConsumerEnd,
    Effect,
    Failure,
    History,
    InboxState,
    Incident,
    Letters,
    Noted,
    Operated,
    Orphan,
    OutboxState,
    Posted,
    Record,
    Source,
    Stored,
)
from relay.adapters.jetstream.connection import NatsConnection, connect_once
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.commands.reconcile import Stored as StoredMessage
from relay.domain.errors import Outage

Urls = Mapping[str, str]

_POLL_SECONDS: Final = 1.0
#: What a server that does not answer now makes of a question.
_AWAY: Final = (psycopg.Error, Outage, nats.errors.Error, JetStreamError, OSError)
#: Messages of the stream that are read at once, and records that are written at once.
_PAGE: Final = 10_000
_CHUNK: Final = 1_000

_UNPUBLISHED: Final = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL AND dead_at IS NULL"
#: An alert of a condition may come at any moment.
_UNSENT: Final = """
SELECT (SELECT count(*) FROM alerts WHERE sent_at IS NULL AND class <> 'condition')
     + (SELECT count(*) FROM dead_letters AS d
        WHERE alerted_at IS NULL AND status = 'open' AND relay_incident_state(d) = 'open')
"""
#: What must be none, by database.
_WAITING: Final[tuple[tuple[str, str, LiteralString], ...]] = (
    ("shop", "events are not published", _UNPUBLISHED),
    ("sea", "events of the consuming context are not published", _UNPUBLISHED),
    ("shop", "failures of the producing context have not alerted", _UNSENT),
    ("sea", "failures have not alerted", _UNSENT),
    (
        "sea",
        "messages are not handled",
        "SELECT count(*) FROM inbox_messages WHERE processed_at IS NULL AND dead_lettered_at IS NULL",
    ),
    (
        "sea",
        "dead letters have no incident",
        """
        SELECT count(*) FROM inbox_messages AS m
        WHERE dead_lettered_at IS NOT NULL
          AND NOT EXISTS (SELECT FROM dead_letters AS d WHERE d.message_id = m.message_id)
        """,
    ),
    (
        "sea",
        "jobs that were asked for have not run",
        """
        SELECT count(*) FROM scheduled_jobs AS job
        WHERE requested_at IS NOT NULL
           OR name = 'chaos-asked' AND EXISTS (
                SELECT FROM scheduled_runs WHERE job.name = scheduled_runs.job AND state IN ('waiting', 'started'))
        """,
    ),
)
#: Nobody reads the events that report others, nor those of strangers.
_PUBLISHED: Final = """
SELECT id FROM outbox_events
WHERE published_at IS NOT NULL AND event_type NOT IN ('events_orphaned', 'strange')
"""
_RECEIVED: Final = "SELECT coalesce(source_id, message_id) FROM inbox_messages WHERE subscription <> 'twin'"

_BUSINESS: Final = "SELECT event_id::text, key, place FROM chaos_business"
_OUTBOX: Final = """
SELECT id::text,
       CASE WHEN published_at IS NOT NULL THEN 'published' WHEN dead_at IS NOT NULL THEN 'dead' ELSE 'waiting' END,
       published_seq
FROM outbox_events
"""
_INBOX: Final = """
SELECT coalesce(source_id, message_id)::text, coalesce(subscription, ''),
       CASE WHEN processed_at IS NOT NULL THEN 'processed'
            WHEN dead_lettered_at IS NOT NULL THEN 'dead-lettered'
            ELSE 'open' END,
       attempts
FROM inbox_messages
WHERE subscription IS DISTINCT FROM 'audit' AND subscription IS DISTINCT FROM 'twin'
  AND subscription IS DISTINCT FROM 'dead_letters'
"""
_BESIDE: Final = """
SELECT subscription, message_id::text, count(*) FROM chaos_beside GROUP BY subscription, message_id
"""
_EFFECTS: Final = "SELECT message_id::text, source, key, place FROM chaos_effects ORDER BY place"
_ASKED: Final = "SELECT 0, ids, extract(epoch FROM at)::float8 FROM audit_log WHERE action = 'schedule run'"
_INCIDENTS: Final = """
SELECT coalesce(originals ->> 'id', message_id::text), coalesce(subscription, ''), class, attempts
FROM dead_letters
WHERE class <> 'unconfirmed' AND subscription IS DISTINCT FROM 'dead_letters'
ORDER BY id
"""
_ORPHANS: Final = """
SELECT event_id::text, CASE WHEN reported_at IS NULL THEN 'open' ELSE 'reported' END FROM orphaned_events
UNION ALL
SELECT id::text, 'notice' FROM outbox_events WHERE event_type = 'events_orphaned'
"""
_DEAD_LETTERS: Final = """
SELECT 'sea', 'dead_letter', d.id::text, count(a.id), count(a.id) FILTER (WHERE a.sent_at > '-infinity')
FROM dead_letters AS d
LEFT JOIN alerts AS a ON a.class = 'dead_letter' AND a.about ->> 'id' = d.id::text
WHERE d.status = 'open' AND relay_incident_state(d) = 'open'
GROUP BY d.id
"""
_DEAD_EVENTS: Final = """
SELECT 'shop', 'dead_event', e.id::text, count(a.id), count(a.id) FILTER (WHERE a.sent_at > '-infinity')
FROM outbox_events AS e
LEFT JOIN alerts AS a
  ON a.class = 'dead_event' AND a.about ->> 'id' = coalesce(e.originals ->> 'id', e.id::text)
WHERE e.dead_at IS NOT NULL
GROUP BY e.id
"""
_POSTED: Final = "SELECT class, count(*) FROM alerts WHERE sent_at > '-infinity' GROUP BY class"
_LETTERS: Final = """
SELECT count(*) FILTER (WHERE d.id IS NULL),
       (SELECT count(*) FROM dead_letters WHERE class = 'unconfirmed')
FROM inbox_messages AS i
LEFT JOIN dead_letters AS d
  ON d.message_id = i.message_id AND d.occurrence = i.requeues + 1 AND d.subscription = i.subscription
     AND d.class <> 'unconfirmed'
WHERE i.dead_lettered_at IS NOT NULL
"""


def settle(urls: Urls, nats_url: str, seconds: float = 120.0, cold: Path | None = None) -> bool:
    """Wait until the system is drained; returns whether this took at most ``seconds``. See `left`."""
    deadline = time.monotonic() + seconds
    while left(urls, nats_url, cold):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def left(urls: Urls, nats_url: str, cold: Path | None = None) -> Sequence[str]:
    """Return in words what is still open; nothing when the system is drained. A server that is down is open too.

    ``cold``: the archive, which may hold some of the rows.
    """
    try:
        # The last look is expensive: it reads the whole stream.
        return _waiting(urls) or asyncio.run(_pending(nats_url)) or asyncio.run(_missing(urls, nats_url, cold))
    except _AWAY as error:
        return [f"not reachable: {type(error).__name__}"]


def collect(urls: Urls, nats_url: str, history: History, cold: Path | None = None, seconds: float = 60.0) -> None:
    """Write the records of the final state, archived rows included.

    A server may be away for a moment, for example while a cluster elects a leader. So each part is read again for
    up to ``seconds``, and written when it was read to its end. After that raises what the server answered last.
    """
    parts: list[Callable[[], Iterable[Record]]] = [
        partial(_records, urls["shop"], _BUSINESS, Business),
        lambda: (OutboxState(row["id"], "published", row["published_seq"]) for row in archived(cold, "outbox")),
        partial(_records, urls["shop"], _OUTBOX, OutboxState),
        partial(_archived_messages, cold),
        partial(_records, urls["sea"], _INBOX, InboxState),
        partial(_records, urls["sea"], _EFFECTS, _effect),
        partial(_records, urls["cases"], _EFFECTS, _effect),
        partial(_records, urls["sea"], _BESIDE, Noted),
        partial(_records, urls["sea"], _INCIDENTS, Incident),
        partial(_records, urls["sea"], _ASKED, _asked),
        partial(_records, urls["shop"], _ORPHANS, Orphan),
        partial(_records, urls["sea"], _DEAD_LETTERS, Failure),
        partial(_records, urls["shop"], _DEAD_EVENTS, Failure),
        partial(_records, urls["sea"], _POSTED, partial(Posted, "sea")),
        partial(_records, urls["shop"], _POSTED, partial(Posted, "shop")),
        lambda: asyncio.run(_of_stream(nats_url)),
        partial(_letters, nats_url, urls["sea"]),
    ]
    for part in parts:
        _write(history, _whole(part, seconds))


def _whole(part: Callable[[], Iterable[Record]], seconds: float) -> Sequence[Record]:
    """Read a part to its end, again for up to ``seconds`` while its server is away."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return list(part())
        except _AWAY:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


# --- what is still to come ---


def _waiting(urls: Urls) -> list[str]:
    found = []
    for database, what, statement in _WAITING:
        [[count]] = _rows(urls[database], statement)
        if count:
            found.append(f"{count} {what}")
    return found


async def _pending(nats_url: str) -> list[str]:
    async with connect_once(nats_url) as js:
        consumers = [it for stream in (STREAM, TWIN_STREAM) for it in await _durable(js, stream)]
    return [
        f"consumer {info.name}: {info.num_pending} pending, {info.num_ack_pending} not acknowledged"
        for info in consumers
        if info.num_pending or info.num_ack_pending
    ]


async def _missing(urls: Urls, nats_url: str, cold: Path | None) -> list[str]:
    """Return what counts do not show: events of a lost tail that reconciliation has not restored yet."""
    published = {id.bytes for [id] in _rows(urls["shop"], _PUBLISHED)}
    stored = set(published)
    async for page in _stream(nats_url):
        stored.difference_update(message.event_id.bytes for message in page if message.event_id)
    published.difference_update(id.bytes for [id] in _rows(urls["sea"], _RECEIVED))
    published.difference_update(UUID(_id(row)).bytes for row in archived(cold, "inbox"))
    lacking = {"in the stream": stored, "in the inbox": published}
    return [f"{len(ids)} published events are not {where}" for where, ids in lacking.items() if ids]


# --- the final state ---


def archived(cold: Path | None, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the archived rows of a kind. After a crash some of them may still be in their table, too."""
    for path in sorted(cold.glob(f"*/{kind}/*.jsonl.gz")) if cold else ():
        with gzip.open(path, "rt") as lines:
            yield from map(json.loads, lines)


def _id(row: Mapping[str, Any]) -> str:
    """The id of an archived message. A row apart has another key."""
    return str(row.get("source_id") or row["message_id"])


def _archived_messages(cold: Path | None) -> Iterator[InboxState]:
    for row in archived(cold, "inbox"):
        if row["subscription"] not in (*BESIDE, LETTER_READER):
            state = "processed" if row["processed_at"] else "dead-lettered"
            yield InboxState(_id(row), row["subscription"] or "", state, row["attempts"])


def _effect(message_id: str, source: str, key: str, place: int) -> Effect:
    return Effect(message_id, Source(source), key, place)


def _asked(fault: int, jobs: list[str], at: float) -> Operated:
    return Operated(fault, "run", jobs, at)


def _records(url: str, statement: LiteralString, make: Callable[..., Record]) -> Iterator[Record]:
    return (make(*row) for row in _rows(url, statement))


def _rows(url: str, statement: LiteralString) -> Iterator[tuple[Any, ...]]:
    """Rows by a cursor on the server, so that memory holds only what is made of them."""
    with psycopg.connect(url, connect_timeout=5) as connection, connection.cursor(name="chaos") as cursor:
        cursor.itersize = _CHUNK
        yield from cursor.execute(statement)


def _write(history: History, records: Sequence[Record]) -> None:
    for first in range(0, len(records), _CHUNK):
        history.write(*records[first : first + _CHUNK])


async def _of_stream(nats_url: str) -> list[Record]:
    records: list[Record] = []
    async for page in _stream(nats_url):
        records += [
            Stored(message.seq, str(message.event_id or message.msg_id or ""), message.at.timestamp())
            for message in page
        ]
    async with connect_once(nats_url) as js:
        records += [await _consumer_end(js, info) for info in await _durable(js, STREAM)]
    return records


def _letters(nats_url: str, sea: str) -> Iterator[Record]:
    return _records(sea, _LETTERS, partial(Letters, asyncio.run(_stored_letters(nats_url))))


async def _stored_letters(nats_url: str) -> int:
    async with connect_once(nats_url) as js:
        return (await js.stream_info(LETTERS)).state.messages


async def _stream(nats_url: str) -> AsyncIterator[Sequence[StoredMessage]]:
    """The messages of the event stream in pages, without their payloads. Raises BrokerUnreachable."""
    async with _auditor(nats_url) as auditor:
        state = await auditor.state(STREAM)
        if state is None:
            return
        for first in range(state.first_seq, state.last_seq + 1, _PAGE):
            yield await auditor.stored(STREAM, first, min(first + _PAGE - 1, state.last_seq))


@asynccontextmanager
async def _auditor(nats_url: str) -> AsyncIterator[NatsStreamAuditor]:
    connection = NatsConnection(nats_url, name="chaos-collect")
    try:
        yield NatsStreamAuditor(connection)
    finally:
        await connection.close()


async def _durable(js: JetStreamContext, stream: str) -> list[ConsumerInfo]:
    """The consumers of subscriptions. Those by which the relay reads a stream again come and go."""
    return [info for info in await js.consumers_info(stream) if info.config.durable_name]


async def _consumer_end(js: JetStreamContext, info: ConsumerInfo) -> ConsumerEnd:
    return ConsumerEnd(
        name=info.name,
        pending=info.num_pending or 0,
        ack_pending=info.num_ack_pending or 0,
        ack_floor=info.ack_floor.stream_seq if info.ack_floor else 0,
        last_seq=await _last_seq(js, info.config.filter_subject or ">"),
    )


async def _last_seq(js: JetStreamContext, filter_subject: str) -> int:
    try:
        return (await js.get_last_msg(STREAM, filter_subject)).seq or 0
    except NotFoundError:
        return 0
