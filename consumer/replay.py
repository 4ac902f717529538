"""Replays: old messages into the inbox of one subscription, from the archive, the outbox and the stream.

Each step is small, noted when it is done, and may be done twice: the inbox takes nothing again that it has.
So a worker that dies with a replay leaves it to the next one, where it was. No other subscription sees anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from consumer.pull import MAX_DUE, PullMessages
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor, StreamReader
from relay.adapters.postgres.replays import PostgresReplays, PublishedEvents
from relay.commands.coldrows import ColdRows
from relay.commands.outgoing import outgoing
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.envelopes import Envelope, decode
from relay.domain.errors import InvalidEvent, MalformedMessage, RelayError
from relay.domain.foreign_json import json_of
from relay.domain.large import Reference
from relay.domain.limits import PAYLOAD
from relay.domain.moments import moment
from relay.domain.replays import Replay, ReplayCounts, ReplayPlace, ReplaySource
from relay.domain.routing import Routing
from relay.domain.topology import covers
from relay.ports import Delivery, InboxReceiver, OutboxRow

#: How many messages a step has at most.
_STEP: Final = 100
#: A turn of a routine ends after so many seconds. The next begins where it was.
_TURN_S: Final = 20.0
#: The pause while the workers have enough to do, in seconds.
_BUSY_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """Where the events of a stream come from, if its context is among the settings. ``cold``: its archive."""

    events: PublishedEvents
    routing: Routing
    envelope: Envelope | str
    system_actor: str
    cold: ColdRows | None = None


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """Messages, and where the replay is after them."""

    deliveries: Sequence[Delivery]
    place: ReplayPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayIntoInbox:
    """Puts old messages of one subscription into its inbox. ``filter_subject``: of its consumer."""

    stream: str
    filter_subject: str
    envelope: Envelope | str
    replays: PostgresReplays
    reader: StreamReader
    auditor: NatsStreamAuditor
    inbox: InboxReceiver
    pull: PullMessages
    producer: Producer | None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    turn: float = _TURN_S

    async def run(self, replay: Replay, go_on: Callable[[], bool]) -> None:
        """Carry a claimed replay on: to its end, until it is stopped, or until the turn ends."""
        end = time.monotonic() + self.turn
        try:
            ended = await self._run(replay, lambda: go_on() and time.monotonic() < end)
        except RelayError as error:
            await self.replays.leave(replay, ended=False, error=error.explanation)
            raise
        await self.replays.leave(replay, ended=ended)

    async def _run(self, replay: Replay, go_on: Callable[[], bool]) -> bool:
        async with aclosing(self._steps(replay)) as steps:
            async for step in steps:
                began = time.monotonic()
                counts = await self._put(replay, step.deliveries)
                if not await self.replays.move(replay, step.place, counts) or not go_on():
                    return False
                if step.deliveries:
                    await self.sleep(max(0.0, began + len(step.deliveries) / replay.rate - time.monotonic()))
                while await self.inbox.due(replay.subscription, MAX_DUE) >= MAX_DUE:
                    await self.sleep(_BUSY_S)
                    if not await self.replays.move(replay, step.place, ReplayCounts()) or not go_on():
                        return False
        return True

    async def _put(self, replay: Replay, deliveries: Sequence[Delivery]) -> ReplayCounts:
        wanted, ids = [], []
        for it in deliveries:
            try:
                event = decode(self.envelope, it.subject, it.headers, it.body)
            except MalformedMessage:
                continue
            if replay.fits(event.event_type, event.partition_key):
                wanted.append(it)
                ids.append(event.message_id)
        if not wanted:
            return ReplayCounts()
        repeated = await self.replays.repeat(replay, ids) if replay.again else 0
        added = await self.pull.accept(wanted)
        return ReplayCounts(added=added, repeated=repeated, skipped=len(wanted) - added - repeated)

    # --- where messages come from ---

    async def _steps(self, replay: Replay) -> AsyncGenerator[ReplayStep, None]:
        place = replay.place
        if place.source is ReplaySource.ARCHIVE:
            async with aclosing(self._archived(replay, place)) as steps:
                async for step in steps:
                    place = step.place
                    yield step
            place = ReplayPlace(source=ReplaySource.STREAM, position=0, batch=place.batch)
        async with aclosing(self._streamed(replay, place)) as steps:
            async for step in steps:
                yield step

    async def _archived(self, replay: Replay, place: ReplayPlace) -> AsyncGenerator[ReplayStep, None]:
        """What the archive has beyond the place, batch by batch. What the stream still has, too, comes once."""
        if self.producer is None or self.producer.cold is None:
            return
        begun, part = place.batch + 1, place.part
        chosen = RowFilter(since=replay.since, until=replay.until)
        async with aclosing(self.producer.cold.batches(ArchiveKind.OUTBOX, chosen, after=place.batch)) as batches:
            async for number, lines in batches:
                found = [it for it in map(self._archived_one, lines) if it is not None]
                found.sort(key=lambda it: it.stream_seq)
                for begin in range(part if number == begun else 0, len(found), _size(replay)):
                    step = found[begin : begin + _size(replay)]
                    yield ReplayStep(step, place.in_archive(number - 1, begin + len(step)))
                yield ReplayStep([], place.in_archive(number))

    def _archived_one(self, row: Mapping[str, Any]) -> Delivery | None:
        if row["published_stream"] != self.stream or row["published_seq"] is None or row["dead_at"] is not None:
            return None
        texts = {name: json_of(row[name]) for name in ("payload", "headers")}
        originals = None if row["originals"] is None else json_of(row["originals"])
        names = ("id", "event_type", "event_version", "payload", "occurred_at", "correlation_id", "causation_id")
        first = {name: row[name] for name in names} | texts | {"occurred_at": _utc(row["occurred_at"])}
        rest = {name: row[name] for name in ("partition_key", "topic", "publish_attempts", "generation")}
        event = OutboxRow(**(first | rest), originals=originals, stream=row["stream"], seq=row["seq"])
        return self._published_one(event, row["published_seq"], moment(row["published_at"]))

    def _published_one(
        self, row: OutboxRow, seq: int, at: Any, reference: Reference | None = None
    ) -> Delivery | None:
        """The message of an event as it was in the stream; None if the subscription does not read its subject.

        ``reference``: where its payload is, if it is large.
        """
        assert self.producer is not None
        it = self.producer
        try:
            message = outgoing(
                row,
                routing=it.routing,
                envelope=it.envelope,
                max_payload=2**31,
                system_actor=it.system_actor,
            )
        except InvalidEvent:
            return None
        if not covers(self.filter_subject, message.subject):
            return None
        reply = self.reader.reply(seq)
        headers = message.headers if reference is None else {**message.headers, PAYLOAD: reference.text}
        return Delivery(message.subject, reply, headers, message.body, self.stream, seq, stored_at=at)

    async def _streamed(self, replay: Replay, place: ReplayPlace) -> AsyncGenerator[ReplayStep, None]:
        """The stream in its order, and of what it has dropped what the outbox has, or the archive by now."""
        state = await self.auditor.state(self.stream)
        if state is None:
            return
        position = place.position
        last = state.last_seq if replay.last_position is None else replay.last_position
        if position == 0 and replay.since is not None:
            position = await self._before(replay, state.first_seq, last)
        while position < last:
            state = await self.auditor.state(self.stream)
            if state is None:
                return
            place = replace(place, position=position, last_position=last)
            if position + 1 < state.first_seq:
                found, position = await self._dropped(replay, position, min(state.first_seq, last + 1))
                # Asked after the outbox: what left it before is in a batch by now.
                async with aclosing(self._archived(replay, place)) as steps:
                    async for step in steps:
                        place = step.place
                        yield step
            else:
                found, position = await self._held(replay, position, last)
            place = replace(place, position=position)
            yield ReplayStep([it for it in found if replay.in_time(it.stored_at)], place)
            if found and (at := found[-1].stored_at) is not None and at >= replay.until:
                return

    async def _dropped(self, replay: Replay, position: int, first: int) -> tuple[Sequence[Delivery], int]:
        if self.producer is None:
            return [], first - 1
        size = _size(replay)
        rows = await self.producer.events.between(self.stream, position, first, size)
        found = [it for row in rows if (it := self._published_one(*row)) is not None]
        return found, rows[-1][1] if len(rows) == size else first - 1

    async def _held(self, replay: Replay, position: int, last: int) -> tuple[Sequence[Delivery], int]:
        """The next messages of the subscription. What lies between belongs to others."""
        first = await self.reader.next(position + 1)
        if first is None or first.stream_seq > last:
            return [], last
        end = min(first.stream_seq + _size(replay) - 1, last)
        return await self.reader.deliveries(first.stream_seq, end), end

    async def _before(self, replay: Replay, first: int, last: int) -> int:
        """The sequence before the first message that the stream stored in time; 0 if older ones are elsewhere."""
        assert replay.since is not None
        oldest = await self.reader.next(first)
        if oldest is None or oldest.stored_at is None or oldest.stored_at >= replay.since:
            return 0
        low, high = first, last + 1
        while low < high:
            middle = (low + high) // 2
            found = await self.reader.next(middle)
            if found is None or found.stored_at is None or found.stored_at >= replay.since:
                high = middle
            else:
                low = found.stream_seq + 1
        return low - 1


def _size(replay: Replay) -> int:
    """A step lasts about a second at most."""
    return max(1, min(_STEP, replay.rate))


def _utc(text: str) -> str:
    at = moment(text)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond:06}Z"
