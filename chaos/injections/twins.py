"""A producer that gives its events the ids of another one's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import nats.errors
import psycopg
from nats.js.errors import Error as JetStreamError

from chaos.deployment import CONSUMING, PRODUCING
from chaos.history import Source, Twins
from chaos.stage import Stage
from relay.adapters.jetstream.connection import connect_once
from relay.domain.errors import BrokerUnreachable

_COUNT: Final = 50
_SUBJECT: Final = f"{CONSUMING}.event.{Source.PYTHON}.v1"
#: The newest events: the inbox holds some of them already, and gets others afterwards.
_IDS: Final = "SELECT event_id::text FROM chaos_business ORDER BY op DESC LIMIT %s"


@contextmanager
def same_ids(stage: Stage, _target: str) -> Iterator[None]:
    """Publish messages to another stream of the same context, with ids that events of the first one have."""
    try:
        with psycopg.connect(stage.rig.urls[PRODUCING], connect_timeout=5) as shop:
            ids = [id for [id] in shop.execute(_IDS.encode(), [_COUNT])]
        stored = asyncio.run(_publish(stage, ids))
        stage.history.write(Twins(stage.number, stored))
        stage.note(f"{len(stored)} messages")
    except (psycopg.Error, BrokerUnreachable, nats.errors.Error, JetStreamError, OSError) as error:
        stage.note(type(error).__name__)
    yield


async def _publish(stage: Stage, ids: Sequence[str]) -> Sequence[str]:
    """Publish a message for each id; returns those that are stored for certain."""
    stored: list[str] = []
    async with connect_once(stage.rig.nats.url) as js:
        for id in ids:
            content = {"message_id": id, "event_type": Source.PYTHON, "event_version": 1, "payload": {}}
            try:
                await js.publish(_SUBJECT, json.dumps(content).encode(), headers={"Nats-Msg-Id": id})
            except (nats.errors.Error, JetStreamError, OSError):
                return stored
            stored.append(id)
    return stored
