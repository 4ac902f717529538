"""Finds messages of a stream by their content, and erases them: the server writes other bytes over theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from nats.js.api import ConsumerInfo
from nats.js.errors import APIError, NotFoundError

from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.commands.adopt import Held
from relay.domain.errors import BrokerRefused
from relay.domain.topology import covers

#: How many messages, of any size, the server sends at a time.
_BATCH: Final = 32
#: How many sequences are read by one consumer.
_PART: Final = 5_000
#: The server's list of consumers has pages of so many.
_CONSUMERS: Final = 256

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class StreamConsumer:
    """A durable consumer: which subjects it gets, and up to where it has acknowledged all of them."""

    name: str
    subjects: Sequence[str]
    acknowledged: int
    idle: bool

    def wants(self, seq: int, subject: str) -> bool:
        """Whether it may still need a message."""
        if self.idle or seq <= self.acknowledged:
            return False
        return not self.subjects or any(covers(it, subject) for it in self.subjects)


class NatsErasure:
    """Needs permission for ``$JS.API.STREAM.MSG.DELETE`` and ``CONSUMER.LIST``, and what the auditor needs.

    All methods raise BrokerUnreachable; BrokerRefused where something is not allowed.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._auditor = NatsStreamAuditor(connection, batch=_BATCH)

    async def find(self, stream: str, make: Callable[[Held], Item | None]) -> AsyncIterator[Sequence[Item]]:
        """What ``make`` returns of the messages that are there now, part by part; nothing of a missing stream."""
        if (state := await self._auditor.state(stream)) is None:
            return
        for first in range(max(state.first_seq, 1), state.last_seq + 1, _PART):
            last = min(first + _PART - 1, state.last_seq)
            found = [it for it in await self._auditor.made(stream, first, last, make) if it is not None]
            if found:
                yield found

    async def consumers(self, stream: str) -> Sequence[StreamConsumer]:
        """The durable consumers of a stream; none of a missing stream."""
        found: list[ConsumerInfo] = []
        page: list[ConsumerInfo] | None = None
        async with self._connection.asking(f"cannot list the consumers of {stream}") as client:
            while page is None or len(page) == _CONSUMERS:
                try:
                    page = await client.jetstream().consumers_info(stream, len(found))
                except NotFoundError:
                    break
                found += page
        return [_consumer(it) for it in found if it.config.durable_name]

    async def erase(self, stream: str, seqs: Iterable[int]) -> None:
        """Erase messages. May be repeated."""
        async with self._connection.asking(f"cannot erase messages of {stream}") as client:
            for seq in seqs:
                try:
                    await client.jetstream().delete_msg(stream, seq)
                except NotFoundError:
                    continue
                except APIError as error:
                    if "no message found" not in str(error.description):
                        raise BrokerRefused(f"{stream} erases nothing: {error.description}") from error


def _consumer(info: ConsumerInfo) -> StreamConsumer:
    config = info.config
    subjects = config.filter_subjects or ([config.filter_subject] if config.filter_subject else [])
    floor: Any = info.ack_floor
    acknowledged = floor.stream_seq if floor is not None else 0
    return StreamConsumer(info.name, subjects, acknowledged, not info.num_pending and not info.num_ack_pending)


def texts_of(subject: str, headers: Mapping[str, str]) -> str:
    """What a message has besides its body."""
    return "\n".join([subject, *headers.keys(), *headers.values()])
