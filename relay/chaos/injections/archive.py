"""Rows that go to cold storage while everything else breaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from relay.chaos.deployment import CONSUMING, PRODUCING
from relay.chaos.injections.operators import run
from relay.chaos.stage import Stage

_MOST: Final = 300
#: Made older by a day, rows are beyond what `deployment` says, by far. Only what is beyond every tail that a fault
#: may take away, and that nobody publishes again.
_AGE_EVENTS: Final = """
UPDATE outbox_events SET published_at = published_at - interval '1 day'
WHERE id IN (
    SELECT id FROM outbox_events
    WHERE published_at BETWEEN now() - interval '12 hours' AND now() - interval '60 s'
      AND generation = 0
    ORDER BY seq
    LIMIT %s)
RETURNING id
"""
_AGE_MESSAGES: Final = """
UPDATE inbox_messages
SET received_at = received_at - interval '1 day', processed_at = processed_at - interval '1 day'
WHERE message_id = ANY(%s) AND processed_at IS NOT NULL
"""


@contextmanager
def archived(stage: Stage, _target: str) -> Iterator[None]:
    """Hundreds of finished rows are made old, and `relay archive` moves them away."""
    urls = stage.rig.urls
    try:
        with (
            psycopg.connect(urls[CONSUMING], connect_timeout=5) as sea,
            psycopg.connect(urls[PRODUCING], connect_timeout=5) as shop,
        ):
            ids = [id for [id] in shop.execute(_AGE_EVENTS.encode(), [_MOST]).fetchall()]
            sea.execute(_AGE_MESSAGES.encode(), [ids])
        stage.note(f"{len(ids)} events")
    except psycopg.Error as error:
        stage.note(type(error).__name__)
    stage.note(run(stage, ("archive",)))
    yield
