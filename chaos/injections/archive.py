"""Rows that go to cold storage while everything else breaks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import nats.errors
import psycopg

from chaos.deployment import CONSUMING, PRODUCING, STREAM
from chaos.history import Lost, Stored
from chaos.injections.operators import run
from chaos.stage import Stage
from relay.adapters.jetstream.connection import connect_once
from relay.domain.errors import BrokerUnreachable

_MOST: Final = 150
_SECONDS: Final = 3.0
#: What the command says while the fleet itself archives, and for how many seconds it is tried again.
_BUSY: Final = "error ARCHIVE_BUSY"
_PATIENCE: Final = 30.0
_LOOK_SECONDS: Final = 0.5
_DELETE: Final = f"$JS.API.STREAM.MSG.DELETE.{STREAM}"
#: Only events that are older than every tail that a fault may lose, and that nobody publishes again.
_EVENTS: Final = """
SELECT id::text, published_seq FROM outbox_events
WHERE published_at BETWEEN now() - interval '12 hours' AND now() - interval '60 s'
  AND generation = 0
ORDER BY seq
LIMIT %s
"""
#: What both readers of a message have done.
_FINISHED: Final = """
SELECT coalesce(source_id, message_id)::text FROM inbox_messages
WHERE (message_id = ANY(%(ids)s::uuid[]) OR source_id = ANY(%(ids)s::uuid[])) AND subscription <> 'twin'
GROUP BY 1
HAVING bool_and(processed_at IS NOT NULL AND processed_at < now() - interval '30 s')
   AND (count(*) FILTER (WHERE subscription = 'audit') > 0 OR bool_and(subscription <> 'python'))
"""
#: A day older, rows are far older than `deployment` asks for.
_AGE_EVENTS: Final = """
UPDATE outbox_events SET published_at = published_at - interval '1 day' WHERE id = ANY(%s::uuid[])
"""
_AGE_MESSAGES: Final = """
UPDATE inbox_messages
SET received_at = received_at - interval '1 day', processed_at = processed_at - interval '1 day'
WHERE message_id = ANY(%(ids)s::uuid[]) OR source_id = ANY(%(ids)s::uuid[])
"""


@contextmanager
def archived(stage: Stage, _target: str) -> Iterator[None]:
    """Make finished rows old, delete their messages from the stream, and move the rows with `relay archive`."""
    try:
        stage.note(f"{_age(stage)} events")
    except (psycopg.Error, BrokerUnreachable, nats.errors.Error, OSError) as error:
        stage.note(type(error).__name__)
    stage.note(_archive(stage))
    yield


def _archive(stage: Stage) -> str:
    """Run `relay archive`, again while another process archives; says how it ended."""
    until = time.monotonic() + _PATIENCE
    while (told := run(stage, ("archive",))).startswith(_BUSY) and time.monotonic() < until:
        if stage.over.wait(_LOOK_SECONDS):
            break
    return told


def _age(stage: Stage) -> int:
    """Make rows older by a day. Returns how many events became older."""
    urls = stage.rig.urls
    with (
        psycopg.connect(urls[CONSUMING], connect_timeout=5) as sea,
        psycopg.connect(urls[PRODUCING], connect_timeout=5) as shop,
    ):
        places: dict[str, int] = dict(shop.execute(_EVENTS.encode(), [_MOST]).fetchall())
        finished = [id for [id] in sea.execute(_FINISHED.encode(), {"ids": list(places)}).fetchall()]
        gone = asyncio.run(_delete(stage, {id: places[id] for id in finished}))
        # First the outbox: an event that the stream lacks is published again unless it is old.
        shop.execute(_AGE_EVENTS.encode(), [gone])
        shop.commit()
        sea.execute(_AGE_MESSAGES.encode(), {"ids": gone})
    return len(gone)


async def _delete(stage: Stage, places: Mapping[str, int]) -> list[str]:
    """Delete messages, as a stream does that keeps none of that age. Returns the deleted ones."""
    gone: list[str] = []
    async with connect_once(stage.rig.nats.url) as js:
        for id, seq in places.items():
            # Recorded before the request, because without an answer its outcome is unknown.
            stage.history.write(Lost(stage.number, [id]), Stored(seq, id, time.time()))
            request = json.dumps({"seq": seq, "no_erase": True}).encode()
            answer = await js._nc.request(_DELETE, request, timeout=_SECONDS)  # noqa: SLF001 - it hides its client
            if json.loads(answer.data).get("success"):
                gone.append(id)
    return gone
