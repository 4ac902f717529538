"""Rescues messages past JetStream's ``max_deliver``; without this they are silently lost (DESIGN §6).

The server publishes one advisory and then forgets the message, while every lag figure reads zero.
A stream keeps the advisories. This job inserts the messages that they name into the inbox. There the
row's own attempts decide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from consumer.pull import PullMessages
from relay.domain.facts import DeliveryExhausted, FactSink
from relay.ports import Delivery, JetStreamConsumer

_WAIT: Final = timedelta(seconds=1)
_BATCH: Final = 100
#: No stream has so many messages, and no column holds a larger number.
_MANY: Final = 2**63


class MessageReader(Protocol):
    """Reads the messages of a consumer's stream by sequence."""

    async def next(self, seq: int) -> Delivery | None:
        """Return the consumer's first message at ``seq`` or after it."""

    async def ids(self, first: int, last: int) -> Mapping[int, UUID | None]:
        """Return the message ids of the consumer's messages by sequence; None if an id is not one of ours."""


class RescueExhausted:
    """Rescues messages. Safe to repeat: a message that the inbox knows already is not inserted again."""

    def __init__(
        self,
        context: str,
        subscription: str,
        advisories: JetStreamConsumer,
        reader: MessageReader,
        pull: PullMessages,
        facts: FactSink,
    ) -> None:
        self._context = context
        self._subscription = subscription
        self._advisories = advisories
        self._reader = reader
        self._pull = pull
        self._facts = facts

    async def run(self) -> int:
        """Insert the messages that waiting advisories name; returns how many were new to the inbox.

        An advisory is acknowledged only after its message is in the inbox.
        Raises BrokerUnreachable and DatabaseUnreachable.
        """
        new = 0
        advisories = [*await self._advisories.fetch(_BATCH, _WAIT), *await self._advisories.finish()]
        for advisory in advisories:
            if (seq := _named(advisory)) is None:
                await self._advisories.terminate([advisory.reply], "names no message")
                continue
            delivery = await self._reader.next(seq)
            if delivery is not None and delivery.stream_seq == seq:
                new += await self._pull.accept([delivery])
                self._facts(
                    DeliveryExhausted(context=self._context, subscription=self._subscription, stream_seq=seq)
                )
            await self._advisories.ack([advisory.reply])
        return new


def _named(advisory: Delivery) -> int | None:
    """Return the sequence that an advisory names; None if the server did not write the advisory."""
    try:
        seq = json.loads(advisory.body)["stream_seq"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return seq if type(seq) is int and 0 < seq < _MANY else None
