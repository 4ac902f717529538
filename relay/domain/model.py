"""Entities and values: frozen data, checked on construction. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

from relay.domain.actor import check_actor
from relay.domain.disclosure import full
from relay.domain.errors import FutureEvent, InvalidEvent, InvalidTimestamp
from relay.domain.identity import Originals
from relay.domain.limits import check_headers, check_key
from relay.domain.ordering import UNORDERED
from relay.domain.personal import Personal
from relay.domain.subject import check_event_subject, check_stream, check_token, check_version

#: The HTTP statuses that mean "done". Other statuses below 300 do not: 202 means "later", for example.
DONE: Final = frozenset({200, 201, 204})
#: The HTTP statuses with which a service may say when to call it again.
SAYS_WHEN: Final = frozenset({429, 503})

#: The statuses below 500 that say "not now".
_NOT_NOW: Final = frozenset({408, 429})

#: The longest time that may be given.
LONGEST_SPAN: Final = timedelta(days=36500)
#: How far ``occurred_at`` may run ahead of the clock that checks it (chk_occurred_not_future).
CLOCK_TOLERANCE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Lifespan:
    """Times of an event or task that count from its transaction, by the database's clock, and its end.

    ``delay``: it is due so much later. ``expires_at``: it is worth nothing from then on; ``expires_in``: so long
    after it is due. Raises InvalidTimestamp.
    """

    delay: timedelta | None = None
    expires_at: datetime | None = None
    expires_in: timedelta | None = None

    def __post_init__(self) -> None:
        if self.expires_at is not None:
            _check_moment(self.expires_at, "expires_at")
            if self.expires_in is not None:
                raise InvalidTimestamp(
                    "is given beside expires_at", field="expires_in", hint="give one of the two"
                )
        for name, span in (("deliver_at", self.delay), ("expires_in", self.expires_in)):
            if span is not None and (type(span) is not timedelta or not timedelta() < span <= LONGEST_SPAN):
                raise InvalidTimestamp("must be a time of more than nothing and at most 100 years", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEvent:
    """An event recorded in the transaction of the change that it reports.

    ``partition_key``: events with the same key keep their commit order; the empty string means no order.
    ``topic``: an explicit subject instead of the context's template.
    ``available_at``: the event is not published before this time.
    ``stream``: the stream that must store it. ``schema``: where its table is; None follows the search_path.
    ``occurred_at``: None means the time of the transaction.
    ``originals``: the texts of ids that are no UUIDs. ``timing``: see `Lifespan`; most events have none.
    ``payload``: JSON text, already checked by `relay.domain.limits.encode_payload`.
    ``personal``: what encrypts fields of it before the row is written; None if nothing does.

    Raises InvalidEvent or a subclass, naming the field.
    """

    id: UUID
    aggregate_type: str
    aggregate_id: str
    event_type: str
    event_version: int = 1
    payload: str
    occurred_at: datetime | None = None
    correlation_id: UUID | None = None
    causation_id: UUID | None = None
    partition_key: str = UNORDERED
    topic: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    available_at: datetime | None = None
    originals: Originals = field(default_factory=dict)
    stream: str | None = None
    schema: str | None = None
    personal: Personal | None = None
    timing: Lifespan | None = None

    def __post_init__(self) -> None:
        self._check_identity()
        check_token(self.event_type, "event_type")
        check_version(self.event_version)
        check_key(self.aggregate_type, "aggregate_type")
        check_key(self.aggregate_id, "aggregate_id")
        if self.partition_key != UNORDERED:
            check_key(self.partition_key, "partition_key", limit=2 * 200 + 1)
        if self.topic is not None:
            check_event_subject(self.topic)
        if self.stream is not None:
            check_stream(self.stream)
        check_headers(self.headers)
        check_actor(self.headers)
        for name, moment in (("occurred_at", self.occurred_at), ("available_at", self.available_at)):
            if moment is not None:
                _check_moment(moment, name)

    def _check_identity(self) -> None:
        if not isinstance(self.id, UUID):
            raise InvalidEvent("must be a UUID or text", field="id")
        for name, value in (("correlation_id", self.correlation_id), ("causation_id", self.causation_id)):
            if value is not None and not isinstance(value, UUID):
                raise InvalidEvent("must be a UUID or text", field=name)
        if not self.event_type:
            raise InvalidEvent("is required", field="event_type")

    def check_not_future(self, now: datetime) -> None:
        """Check that ``occurred_at <= now``, with the tolerance of the table's constraint.

        Raises FutureEvent.
        """
        if self.occurred_at is not None and self.occurred_at > now + CLOCK_TOLERANCE:
            raise FutureEvent(
                f"{self.occurred_at.isoformat()} lies in the future",
                field="occurred_at",
                hint="use available_at to delay an event",
            )


def _check_moment(value: Any, name: str) -> None:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidTimestamp("must be a datetime with a time zone", field=name)
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise InvalidTimestamp("lies outside of the years 1 to 9999 in UTC", field=name) from None


@dataclass(frozen=True, slots=True)
class Finished:
    """A message that needs no redelivery: acknowledge it by ``reply`` if it is still at ``stream_seq``.

    ``msg_id``: its header ``Nats-Msg-Id``.
    """

    message_id: UUID
    stream_seq: int
    reply: str
    msg_id: str | None = None


def is_outage_status(status: int) -> bool:
    """Whether an HTTP status may say that a service is away: 5xx, 408 and 429."""
    return status >= 500 or status in _NOT_NOW


class Verdict(Enum):
    """A handler's verdict. ``poison``: the message is bad (422). ``refused``: a rule forbids it for ever.

    ``unknown``: this worker has no function for it; another one may.
    """

    PROCESSED = "processed"
    ALREADY_PROCESSED = "already_processed"
    POISON = "poison"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    TRANSIENT = "transient"


class Away(Enum):
    """Whether an answer, or none, says that the handler is away. ``SURELY``: no message can be at fault."""

    NO = "no"
    PERHAPS = "perhaps"
    SURELY = "surely"


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """A handler's answer: the verdict and, for a failure, a reason that is safe for a log line.

    ``settled``: ``processed_at`` is already committed, in the transaction of the handler's own writes.
    ``said``: the text of the answer or exception itself. It may repeat payload, so it is used only on request
    (see `in_full`). ``counts``: whether this was an attempt. It was none if the handler could not be called, or
    said when to call it again. ``delay``: the wait until then. ``final``: no attempt may follow.
    ``away``: whether the handler may be away (`relay.domain.circuit`). ``held``: it waited in vain for a lock, or
    lost a conflict with another transaction. That is nobody's mistake.
    """

    verdict: Verdict
    detail: str = ""
    settled: bool = False
    counts: bool = True
    said: str = field(default="", repr=False)
    away: Away = field(default=Away.NO, compare=False)
    delay: timedelta | None = None
    final: bool = False
    held: bool = False

    @classmethod
    def from_status(
        cls, status: int, detail: str = "", said: str = "", retry_after: timedelta | None = None
    ) -> HandlerResult:
        """Read an HTTP status. ``retry_after``: when the service wants to be called again, if it says so.

        Only the statuses in `DONE` count as processed. A status that the contract does not know is retried like
        a 5xx: a 404, for example, is a deployment mistake and a 202 means "not yet". Neither is a bad message.
        """
        if status in DONE:
            return cls(Verdict.PROCESSED)
        if status == 409:
            return cls(Verdict.ALREADY_PROCESSED)
        if status == 422:
            return cls(Verdict.POISON, _answer(status, detail), said=said)
        away = Away.PERHAPS if is_outage_status(status) else Away.NO
        wait = retry_after if status in SAYS_WHEN else None
        text = _answer(status, detail)
        return cls(Verdict.TRANSIENT, text, said=said, counts=wait is None, away=away, delay=wait)

    @classmethod
    def failed(cls, detail: str, said: str = "", *, away: Away = Away.NO) -> HandlerResult:
        """The result when there is no usable answer: a time-out, or a refused or broken connection."""
        return cls(Verdict.TRANSIENT, detail, said=said, away=away)

    def in_full(self) -> HandlerResult:
        """The same answer, with ``said`` included in its detail."""
        return replace(self, detail=full(self.detail, self.said), said="") if self.said else self


def _answer(status: int, detail: str) -> str:
    """The reason for a status. It begins with the status, from which `relay.domain.reasons` reads its code."""
    return f"HTTP {status}: {detail}" if detail else f"HTTP {status}"
