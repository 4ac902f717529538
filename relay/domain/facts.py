"""Facts: the list of everything that is reported to telemetry. The core states facts; listeners decide what to do.

A fact carries ids, sizes and reasons, never a payload or a credential. A fact about one event, message or task
also carries its correlation (the operation it belongs to), its causation (its direct cause) and its trace, if any.
The last ones only measure: how long handlers took, how much waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar, overload
from uuid import UUID

from relay.domain.backlogs import Backlogs
from relay.domain.identity import Id
from relay.domain.lag import ContextLag

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Base of all facts. ``context`` is the bounded context where it happened."""

    context: str


class MadeLater(Sequence[Item]):
    """The items that ``make`` returns, made when somebody looks at one. Most facts are only counted.

    ``size``: how many they are, if that is known before.
    """

    def __init__(self, make: Callable[[], Sequence[Item]], size: int | None = None) -> None:
        self._make, self._size = make, size
        self._made: Sequence[Item] | None = None

    def _items(self) -> Sequence[Item]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __len__(self) -> int:
        return len(self._items()) if self._size is None else self._size

    @overload
    def __getitem__(self, at: int, /) -> Item: ...
    @overload
    def __getitem__(self, at: slice, /) -> Sequence[Item]: ...
    def __getitem__(self, at: int | slice, /) -> Item | Sequence[Item]:
        return self._items()[at]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items())


class Publication(NamedTuple):
    """One published event: outbox_id, event_type, subject, published_at (by the database's clock), traceparent."""

    outbox_id: str
    event_type: str
    subject: str
    published_at: datetime
    traceparent: str | None = None


class Traced(NamedTuple):
    """A call for a message or task that belongs to a trace.

    ``parent``: the ``traceparent`` it came with. ``span``: that of the call, which its handler got.
    ``verdict``: the answer, as `relay.domain.model.Verdict` names it. ``source``: the subject of a message, the
    queue of a task.
    """

    parent: str
    span: str
    id: Id
    correlation_id: Id | None
    source: str
    attempts: int
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEventsPublished(Fact):
    """A batch of events is published and settled. JetStream took ``seconds`` to acknowledge it.

    ``latencies``: the seconds from the sending of each of the events to its PubAck. ``begun``: when the first was
    sent, in Unix time. ``waits``: the seconds that events have waited since they occurred.
    """

    events: Sequence[Publication]
    duplicates: int
    seconds: float
    latencies: Sequence[float]
    begun: float = field(default=0.0, repr=False, compare=False)
    waits: Sequence[float] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFact(Fact):
    """Base of the facts about one event that could not be published."""

    outbox_id: str
    correlation_id: str | None
    causation_id: str | None
    error: str
    trace_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFailed(EventFact):
    """The event waits for its next attempt."""

    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDied(EventFact):
    """The event is kept with ``dead_at`` for an operator to repair and publish. Alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventExpired(EventFact):
    """The event was stale before it was published. It is kept, and nobody gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersBraked(Fact):
    """The outbox is full. From now on they notice it: ``action`` is warn, delay or refuse.

    ``waiting`` events are counted, up to the limit. The first of them has waited for ``age_seconds``.
    """

    action: str
    reason: str
    waiting: int
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersReleased(Fact):
    """The outbox is no longer full: it takes events as always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageSeen(Fact):
    """A server could not be reached. No attempt is counted; work continues when the server returns."""

    server: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesReceived(Fact):
    """A batch arrived from the stream. ``duplicates`` of its messages were known already.

    ``traces``: the ``traceparent`` of its messages. ``begun``: when it arrived, in Unix time. ``waits``: the
    seconds that new messages have waited in the stream.
    """

    subscription: str
    received: int
    duplicates: int
    traces: Sequence[str] = field(default=(), repr=False, compare=False)
    begun: float = field(default=0.0, repr=False, compare=False)
    waits: Sequence[float] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullsPaused(Fact):
    """The inbox of a subscription holds ``max_inbox`` unfinished messages. The next ones wait in the stream."""

    subscription: str
    max_inbox: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullsResumed(Fact):
    """The inbox of a subscription has room again."""

    subscription: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitOpened(Fact):
    """The handler of a subscription is away: only single messages are tried until it answers. Alert.

    ``error``: the last failure. The attempts that the outage has cost are given back.
    """

    subscription: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitClosed(Fact):
    """The handler of a subscription has answered again, after ``seconds``: all its messages go on."""

    subscription: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesLetGo(Fact):
    """``count`` waiting messages were acknowledged before they are handled, to make room in JetStream's window."""

    subscription: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFact(Fact):
    """Base of the facts about one message."""

    subscription: str
    message_id: Id
    correlation_id: Id | None
    causation_id: Id | None
    attempts: int
    trace_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageProcessed(MessageFact):
    """A handler processed a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageExpired(MessageFact):
    """The message was stale before its handler was called. It is kept, and no handler gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRetried(MessageFact):
    """A handler failed. The message is tried again after ``delay_seconds``."""

    delay_seconds: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeadLettered(MessageFact):
    """A message is stored as a dead letter. ``kind`` is its class. Alert."""

    original_subject: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterDelayed(MessageFact):
    """The stream did not take a dead letter. It is tried again; the incident does not wait for it."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignLetterFound(Fact):
    """The DLQ stream had a message of somebody else under the id of a dead letter. Ours got another id."""

    subscription: str
    message_id: Id
    stream: str
    stream_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRecorded(Fact):
    """A dead letter is recorded as an incident and waits for an operator. Alert."""

    incident_id: int
    subscription: str | None
    message_id: Id
    event_type: str | None
    correlation_id: Id | None
    causation_id: Id | None
    kind: str
    reason: str
    attempts: int
    trace_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRaised(Fact):
    """Somebody must know of ``count`` final failures of a subject, or of a condition. No webhook delays it.

    ``kind``: the class of the alert. ``state``: a condition is raised, lasting, resolved. ``subject``: the
    subscription, task, job, stream or server. ``since``: the first of them. ``runbook``: what to do.
    """

    kind: str
    state: str
    subject_type: str
    subject: str
    reason_code: str
    text: str
    since: datetime
    count: int
    runbook: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFailed(Fact):
    """The webhook for alerts did not accept an alert. It is sent again; alerts about ``waiting`` causes wait."""

    error: str
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Fact):
    """Base of the facts that ``count`` messages of a subscription were lost on the way and are found again."""

    subscription: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesReEnqueued(Found):
    """The sweep found due rows that no queue held, for instance after Redis was flushed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveriesRecovered(Found):
    """Messages that a dying worker lost before they reached the inbox were read from the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxGapFilled(Found):
    """Messages were acknowledged but missing from the inbox. They were read from the stream again. Alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryExhausted(Fact):
    """JetStream stopped delivering a message (max_deliver). It is read from the stream, if it is still there."""

    subscription: str
    stream_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLossFound(Fact):
    """A stream lacks events that it acknowledged: ``tail`` events at its end, ``middle`` before it. Alert.

    ``ids`` are the first of them. ``repaired``: they are marked unpublished and will be published again.
    """

    stream: str
    tail: int
    middle: int
    ids: Sequence[Id]
    repaired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphansFound(Fact):
    """A stream holds ``count`` more events that the outbox does not know: its database was set back. Alert.

    ``ids`` are the first of them.
    """

    stream: str
    count: int
    ids: Sequence[UUID]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencesMended(Fact):
    """Sequences stood below the numbers of their tables, and were set above them. ``names``: which. Alert."""

    names: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksDelivered(Fact):
    """Tasks were sent to a queue, which confirmed them. ``again``: the sweep had found them lost."""

    queue: str
    count: int
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFact(Fact):
    """Base of the facts about one task."""

    task_id: UUID
    task_type: str
    correlation_id: Id | None
    causation_id: Id | None
    attempts: int
    trace_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCompleted(TaskFact):
    """A handler completed a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExpired(TaskFact):
    """The task was stale before its function was called. It is kept, and not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRetried(TaskFact):
    """A handler failed. The task is tried again after ``delay_seconds``."""

    delay_seconds: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed(TaskFact):
    """A task has failed for good and waits for an operator. Alert."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPutOff(Fact):
    """A limit keeps a task waiting. No attempt is counted. ``waits_for``: turn (rate) or room (concurrency)."""

    task_id: UUID
    task_type: str
    waits_for: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUnhandled(Fact):
    """A worker got a task of a type that none of its loaded modules registers. The task waits; nothing is lost."""

    task_id: UUID
    task_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadTaken(Fact):
    """This scheduler now leads a context. ``term`` counts the leaders."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadLost(Fact):
    """This scheduler no longer leads a context: it could not renew its lease. A normal stop gives no fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRunMissed(Fact):
    """No scheduler ran within a cron job's grace, so this run will not happen."""

    job: str
    scheduled_for: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRunFact(Fact):
    """Base of the facts about an attempt at a cron job."""

    job: str
    scheduled_for: datetime
    correlation_id: UUID
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRunFinished(ScheduledRunFact):
    """The command of a cron job succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRunRetried(ScheduledRunFact):
    """The command raised an error. It is dispatched again after ``delay_seconds``."""

    error: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRunFailed(ScheduledRunFact):
    """The command refused, or every attempt raised an error. Alert."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsArchived(Fact):
    """A batch has moved from its table to the archive."""

    kind: str
    file: str
    rows: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDeleted(Fact):
    """A batch of the archive is deleted: it was kept as long as the settings say."""

    kind: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveHeld(Fact):
    """Rows of a stream are not archived, because the stream may still hold or deliver their messages."""

    kind: str
    stream: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFailed(Fact):
    """The archive cannot be trusted or continued. An operator must check it. No row was deleted. Alert."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerAnswered(Fact):
    """The handler of a subscription answered for a message, or the relay stopped waiting, after ``seconds``.

    ``waited``: how long the message was in the inbox, if it is done now; otherwise None.
    """

    subscription: str
    seconds: float
    waited: float | None = field(default=None, repr=False, compare=False)
    traced: Traced | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswered(Fact):
    """The handler of a task type answered, or the relay stopped waiting, after ``seconds``."""

    task_type: str
    seconds: float
    traced: Traced | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRefused(Fact):
    """A query of another service was not answered but refused with a ``code``, after ``seconds``.

    ``error``: class, codes and place of what the handler raised, without its text.
    """

    subject: str
    code: str
    error: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogsSampled(Fact):
    """The backlogs of a context. The leading scheduler counts them at intervals for the metrics."""

    backlogs: Backlogs


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSampled(Fact):
    """The lag of a context. The leading scheduler reads it at intervals for the metrics, others when asked."""

    lag: ContextLag


class FactSink(Protocol):
    """A listener for facts. It must not raise and must not block."""

    def __call__(self, fact: Fact, /) -> None:
        """Receive a fact."""
