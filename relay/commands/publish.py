"""CMD-050 PublishOutboxEvent: claim → publish → settle → commit (DESIGN §5)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from relay.commands.outgoing import outgoing, shown_ids, trace_of
from relay.concurrency import FairSlots
from relay.domain.controls import UNCONTROLLED, Controls, What, put_off, uncontrolled
from relay.domain.envelopes import Envelope
from relay.domain.errors import BrokerUnreachable, InvalidEvent, NotPublishable, Stale
from relay.domain.expiry import TTL, ttl_of
from relay.domain.facts import (
    EventDied,
    EventExpired,
    FactSink,
    MadeLater,
    OutboxEventsPublished,
    Publication,
    PublishFailed,
)
from relay.domain.large import Reference
from relay.domain.limits import PAYLOAD
from relay.domain.operators import LONGER
from relay.domain.ordering import Shard, halves
from relay.domain.policies import (
    EXPIRED,
    Expired,
    GiveUp,
    NotSent,
    OutcomeUnknown,
    Paused,
    Published,
    PublishOutcome,
    Retry,
    RowRejected,
    after_publish_failure,
)
from relay.domain.retry import RetryPolicy
from relay.domain.routing import Routing
from relay.domain.traceparent import find
from relay.failpoints import reach
from relay.ports import (
    ClaimedBatch,
    Expiry,
    JetStreamPublisher,
    Message,
    OutboxRepository,
    OutboxRow,
    PublishFailure,
)

#: After this many batches, both halves of a shard stop and the busy lanes are divided again. An event in a quiet
#: lane waits no longer than this.
_HALF_BATCHES: Final = 8
#: How many batches may be under way at the same time: as many as two shards have. Contexts share these slots.
_BATCHES: Final = 4
#: After this many characters of payloads, the other tasks on the event loop may run.
_PORTION_CHARS: Final = 1_000_000
#: A body that leaves less room than this gets no further header, in bytes.
_TTL_ROOM: Final = 32_768
#: How often to look, while publishing is paused, whether it goes on, in seconds.
_RESTING_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishConfig:
    """How one context publishes. ``envelope``: the form of its events on the wire.

    ``system_actor``: who acts, in an envelope that needs somebody, if the event names nobody.
    A batch has at most ``batch_size`` events. It ends with the event that brings it to ``batch_bytes`` of text.
    ``expires_in``: how long events of a type may be published that say nothing themselves. ``ttl``:
    whether its streams remove what expires.
    ``dead_head_blocks``: whether an event that can never be published holds back the later ones of its key.
    """

    routing: Routing
    envelope: Envelope | str
    batch_size: int = 300
    batch_bytes: int = 4 * 1024**2
    expires_in: Mapping[str, timedelta] = field(default_factory=dict)
    ttl: bool = False
    policy: RetryPolicy = RetryPolicy(max_attempts=10)
    system_actor: str = "system"
    dead_head_blocks: bool = False


@dataclass(frozen=True, slots=True)
class _Settled:
    """The result of one claimed batch. ``times``: when each event was published, by the database's clock."""

    rows: Sequence[OutboxRow]
    messages: Mapping[str, Message]
    times: Mapping[str, datetime]
    outcomes: Mapping[str, PublishOutcome]
    failures: Sequence[PublishFailure]
    begun: float
    seconds: float
    expired: Sequence[OutboxRow] = ()

    def published(self) -> list[Publication]:
        """What is reported of the published rows."""
        return [
            Publication(row.id, row.event_type, sent.subject, self.times[row.id], find(sent.headers))
            for row in self.rows
            if row.id in self.times
            for sent in [self.messages[row.id]]
        ]

    def waits(self) -> list[float]:
        """The seconds that the published rows have waited since they occurred, where that is known."""
        now = datetime.now(UTC)
        ages = (_age(row.occurred_at, now) for row in self.rows if row.id in self.times)
        return [max(0.0, age.total_seconds()) for age in ages if age < timedelta.max]

    @property
    def freed(self) -> bool:
        """Whether an event became dead or expired, so that later events of its key may be published."""
        return bool(self.expired) or any(failure.delay is None for failure in self.failures)


class PublishOutboxEvents:
    """Moves events from the outbox to the stream. It is safe to run in many processes and to repeat."""

    def __init__(
        self,
        config: PublishConfig,
        outbox: OutboxRepository,
        publisher: JetStreamPublisher,
        facts: FactSink,
        slots: FairSlots | None = None,
        controls: Callable[[], Awaitable[Controls]] = uncontrolled,
    ) -> None:
        """``controls``: what operators have paused: publishing as a whole, or types of events."""
        self._config = config
        self._slots = slots or FairSlots(_BATCHES)
        self._outbox = outbox
        self._publisher = publisher
        self._facts = facts
        self._controls = controls

    async def resumed(self, go_on: Callable[[], bool]) -> None:
        """Wait while publishing is paused and ``go_on`` says so. Raises DatabaseUnreachable."""
        while go_on():
            if not (await self._controls()).is_paused(What.PUBLISHING):
                return
            await asyncio.sleep(_RESTING_S)

    async def drain(self, shard: Shard, go_on: Callable[[], bool] = lambda: True) -> int:
        """Publish the shard's events until no more are due; return how many were published.

        Waits for a slot before each batch, and then asks ``go_on``. Raises DatabaseUnreachable. Raises
        BrokerUnreachable when nothing of a batch was acknowledged. Events acknowledged earlier are settled, and no
        attempt is counted for the others. While publishing is paused, nothing is published.
        """
        total, more = 0, True
        while more:
            busy, more, published = await self._batch(shard.lanes, go_on)
            total += published
            if more:
                # While one half waits for the broker, the other uses the database.
                drained = (self._drain_half(lanes, go_on) for lanes in halves(shard.lanes, busy))
                total += sum(await _all_of(*drained))
        return total

    async def _drain_half(self, lanes: Sequence[int], go_on: Callable[[], bool]) -> int:
        """Publish a few batches of these lanes, or fewer if nothing is left; return how many were published."""
        total = 0
        for _ in range(_HALF_BATCHES):
            _, more, published = await self._batch(lanes, go_on)
            total += published
            if not more:
                break
        return total

    async def _batch(self, lanes: Sequence[int], go_on: Callable[[], bool]) -> tuple[Collection[int], bool, int]:
        """Publish a claim of these lanes; return the busy lanes, whether to go on, how many it published."""
        limits = self._config.batch_size, self._config.batch_bytes
        async with self._slots.slot(self._config.routing.context) as slot:
            controls = await self._controls()
            if controls.is_paused(What.PUBLISHING) or not go_on():
                return (), False, 0
            async with self._outbox.find_unpublished(lanes, *limits) as claim:
                settled = await self._publish(claim, controls)
            slot.cost = len(settled.outcomes)
        if settled.messages:
            reach("after_publish_commit")
        self._report(settled)
        outcomes = settled.outcomes.values()
        published = len(settled.times)
        if not published:
            _raise_on_outage(outcomes)
        # Only a part was acknowledged: the link is slow or the broker just stopped. The next batch shows which.
        cut = published < len(outcomes) and any(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
        return claim.busy, claim.more or settled.freed or cut, published

    async def publish(self, outbox_event_id: UUID) -> Published:
        """CMD-050 for one event, which may also be dead or in back-off.

        Raises Stale if its time is over, and NotPublishable if it is unknown, already published, refused by the
        broker, or behind an unpublished event of its key. Raises BrokerUnreachable and DatabaseUnreachable.
        """
        async with self._outbox.find_one(outbox_event_id) as claim:
            settled = await self._publish(claim)
        self._report(settled)
        _raise_on_outage(settled.outcomes.values())
        match settled.outcomes.get(str(outbox_event_id)):
            case Published() as published:
                return published
            case Expired(at):
                raise Stale(f"event {outbox_event_id} was worth publishing until {at}", hint=LONGER)
            case None:
                raise NotPublishable(
                    f"event {outbox_event_id} is unknown, published, or waits for an earlier one of its key"
                )
            case refused:
                raise NotPublishable(f"event {outbox_event_id} was refused: {getattr(refused, 'error', refused)}")

    async def _publish(self, claim: ClaimedBatch, controls: Controls = UNCONTROLLED) -> _Settled:
        """Publish the claimed rows and settle them inside the claim."""
        rows = claim.rows
        judged: Mapping[str, Expiry] = {}
        expired: list[OutboxRow] = []
        if expiring := self._expiring(rows):
            judged = await claim.expire(expiring)
            rows, expired = _parted(rows, judged)
        messages, outcomes = await self._prepare(rows, controls)
        if judged and self._config.ttl and self._publisher.takes_ttl:
            most = self._publisher.max_payload - _TTL_ROOM
            messages = [_removed_in_time(it, judged.get(it.id), most) for it in messages]
        if claim.references:
            messages = [_referring(it, claim.references.get(it.id)) for it in messages]
        begun, since, seconds = time.time(), time.perf_counter(), 0.0
        if messages:
            reach("after_claim")
            outcomes |= await self._publisher.publish_all(messages, claim.begun)
            seconds = time.perf_counter() - since
            reach("after_publish_before_mark")
        acks = {id: out for id, out in outcomes.items() if isinstance(out, Published)}
        times: dict[str, datetime] = {}
        for id, marked in (await claim.mark_published(acks)).items():
            if isinstance(marked, datetime):
                times[id] = marked
            else:
                stored = f"{acks[id].stream} has it as {acks[id].seq}"
                outcomes[id] = RowRejected(f"{stored}, but its row cannot be settled: {marked}")
        failures = self._failures(rows, outcomes) if len(times) < len(rows) else []
        await claim.increment_attempts(failures)
        if messages:
            reach("after_mark_before_commit")
        sent = {message.id: message for message in messages}
        outcomes |= {row.id: Expired(row.expires_at or "") for row in expired}
        return _Settled(rows, sent, times, outcomes, failures, begun, seconds, expired)

    def _expiring(self, rows: Sequence[OutboxRow]) -> dict[str, timedelta | None]:
        """The events that say until when they are worth publishing, or whose type does: by its default."""
        if usual := self._config.expires_in:
            return {
                it.id: usual.get(it.event_type)
                for it in rows
                if it.expires_at is not None or it.event_type in usual
            }
        return {it.id: None for it in rows if it.expires_at is not None}

    async def _prepare(
        self, rows: Sequence[OutboxRow], controls: Controls
    ) -> tuple[list[Message], dict[str, PublishOutcome]]:
        """The messages to send, and outcomes of rows that must not be sent: bad rows, and what they hold back.

        Bad rows of one key die together, however many there are. An event of a paused type holds back its key.
        """
        paused = controls.events
        messages: list[Message] = []
        outcomes: dict[str, PublishOutcome] = {}
        blocked: set[str] = set()
        config, size = self._config, 0
        routing, envelope, system_actor = config.routing, config.envelope, config.system_actor
        for row in rows:
            size += len(row.payload or "")
            if size > _PORTION_CHARS:
                size = 0
                await asyncio.sleep(0)
            try:
                message = outgoing(
                    row,
                    routing=routing,
                    envelope=envelope,
                    max_payload=self._publisher.max_payload,
                    system_actor=system_actor,
                )
            except InvalidEvent as error:
                outcomes[row.id] = RowRejected(str(error))
                if row.partition_key and self._config.dead_head_blocks:
                    blocked.add(row.partition_key)
                continue
            if row.partition_key in blocked:
                outcomes[row.id] = NotSent()
            elif paused and row.event_type in paused:
                outcomes[row.id] = Paused(put_off(controls.paused[What.EVENT_TYPE, row.event_type]))
                if row.partition_key:
                    blocked.add(row.partition_key)
            else:
                messages.append(message)
        return messages, outcomes

    def _failures(
        self, rows: Sequence[OutboxRow], outcomes: Mapping[str, PublishOutcome]
    ) -> Sequence[PublishFailure]:
        failures = []
        for row in rows:
            outcome = outcomes[row.id]
            if isinstance(outcome, Published):
                continue
            policy, chance = self._config.policy, random.random()  # noqa: S311
            age = _age(row.occurred_at, datetime.now(UTC))
            match after_publish_failure(outcome, row.publish_attempts, policy, chance, age):
                case Retry(delay, error, counts):
                    failures.append(PublishFailure(row.id, error, delay, counts))
                case GiveUp(error):
                    failures.append(PublishFailure(row.id, error, None))
        return failures

    def _report(self, settled: _Settled) -> None:
        """State the facts after the claim is committed: EVT-047-001 for the published events."""
        context = self._config.routing.context
        for row in settled.expired:
            self._facts(EventExpired(**self._about(row, f"{EXPIRED} ({row.expires_at})")))
        if settled.times:
            acks = [out for out in settled.outcomes.values() if type(out) is Published]
            self._facts(
                OutboxEventsPublished(
                    context=context,
                    events=MadeLater(settled.published, len(acks)),
                    duplicates=sum([ack.duplicate for ack in acks]),
                    seconds=settled.seconds,
                    latencies=[ack.seconds for ack in acks],
                    begun=settled.begun,
                    waits=MadeLater(settled.waits),
                )
            )
        self._report_failures(settled)

    def _report_failures(self, settled: _Settled) -> None:
        failed = {failure.id: failure for failure in settled.failures}
        for row in settled.rows if failed else ():
            if (failure := failed.get(row.id)) is None or isinstance(settled.outcomes[row.id], Paused):
                continue
            about = self._about(row, failure.error)
            if failure.delay is None:
                self._facts(EventDied(**about))
            else:
                self._facts(PublishFailed(**about, attempts=max(1, row.publish_attempts + failure.counts)))

    def _about(self, row: OutboxRow, error: str) -> dict[str, Any]:
        id, correlation_id, causation_id = shown_ids(row)
        return {
            "context": self._config.routing.context,
            "outbox_id": id,
            "correlation_id": correlation_id,
            "causation_id": causation_id,
            "trace_id": trace_of(row),
            "error": error,
        }


def _parted(
    rows: Sequence[OutboxRow], judged: Mapping[str, Expiry]
) -> tuple[Sequence[OutboxRow], list[OutboxRow]]:
    """The rows that are worth publishing, with their times, and the stale ones."""
    rows = [row if (it := judged.get(row.id)) is None else row._replace(expires_at=it.expires_at) for row in rows]
    stale = {id for id, it in judged.items() if it.stale}
    return [row for row in rows if row.id not in stale], [row for row in rows if row.id in stale]


def _referring(message: Message, reference: Reference | None) -> Message:
    """The message with a header that says where its payload is; None: in its body."""
    if reference is None:
        return message
    return message._replace(headers={**message.headers, PAYLOAD: reference.text})


def _removed_in_time(message: Message, expiry: Expiry | None, most: int) -> Message:
    """The message, which its stream removes when its time is over. One of more than ``most`` bytes has no room."""
    if expiry is None or expiry.seconds is None or len(message.body) > most:
        return message
    return message._replace(headers={**message.headers, TTL: ttl_of(expiry.seconds)})


def _age(occurred_at: str, now: datetime) -> timedelta:
    """How old an event is. An event without a time, or with a time that Python cannot hold, counts as very old."""
    try:
        return now - datetime.fromisoformat(occurred_at)
    except (TypeError, ValueError):
        return timedelta.max


async def _all_of(*coroutines: Coroutine[Any, Any, int]) -> list[int]:
    """Wait for all coroutines, then raise the first error, if there is one."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _raise_on_outage(outcomes: Iterable[PublishOutcome]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, OutcomeUnknown):
            raise BrokerUnreachable(outcome.error)
