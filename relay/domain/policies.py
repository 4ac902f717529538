"""Decisions as values (SDS-047 §3.3, DESIGN §5, §6). Nothing here acts; callers match on the result."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from relay.domain.backoff import Backoff
from relay.domain.model import HandlerResult, Verdict

# --- consuming: what to do with a message after its handler answered -----------------------------


class DeadLetterClass(Enum):
    """Why a message is dead: unreadable, refused by its handler, or out of attempts."""

    POISON = "poison"
    DETERMINISTIC = "deterministic"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, slots=True)
class Ack:
    """Processed: record it, unless it is ``settled`` already, then acknowledge."""

    settled: bool = False


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Route to the dead-letter subject, then acknowledge."""

    reason: str
    kind: DeadLetterClass


@dataclass(frozen=True, slots=True)
class Retry:
    """Do not acknowledge: record the error and call the handler again after ``delay``."""

    delay: timedelta
    error: str


Disposition: TypeAlias = Ack | DeadLetter | Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, and how far apart, a handler is tried."""

    max_attempts: int = 20
    backoff: Backoff = Backoff()


#: How long a repeat is recognised. JetStream keeps events for days, people requeue dead letters for weeks.
KEEP: Final = timedelta(days=30)
#: More attempts than anybody means to make.
MANY: Final = 2**31 - 1


def unanswered(max_attempts: int) -> DeadLetter:
    """The verdict over a message whose last attempt nobody lived to answer: its worker died, again and again."""
    reason = f"exhausted: {max_attempts} attempts, the last one without an answer: its worker died or was cut off"
    return DeadLetter(reason, DeadLetterClass.EXHAUSTED)


def decide(result: HandlerResult, attempts: int, policy: RetryPolicy, chance: float) -> Disposition:
    """POL-047-005, -006, -007. ``attempts`` includes the one that gave ``result``."""
    match result.verdict:
        case Verdict.PROCESSED | Verdict.ALREADY_PROCESSED:
            return Ack(result.settled)
        case Verdict.POISON:
            return DeadLetter(result.detail, DeadLetterClass.DETERMINISTIC)
        case Verdict.TRANSIENT if attempts >= policy.max_attempts:
            reason = f"exhausted: {attempts} attempts, the last one: {result.detail}"
            return DeadLetter(reason, DeadLetterClass.EXHAUSTED)
        case Verdict.TRANSIENT:
            return Retry(policy.backoff.delay(attempts, chance), result.detail)


# --- publishing: what to do with an event after the broker answered, or did not -------------------


class Published(NamedTuple):
    """The PubAck: the stream holds the event at ``seq``; ``duplicate`` if it already did."""

    stream: str
    seq: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """No answer in time, or the broker cannot take anything now. The event may or may not be stored."""

    error: str


@dataclass(frozen=True, slots=True)
class RowRejected:
    """This event itself is at fault: too large, invalid subject, invalid payload.

    ``final`` unless a limit is at fault as well that is the stream's own, and may be raised.
    """

    error: str
    final: bool = True


@dataclass(frozen=True, slots=True)
class NoStream:
    """No stream takes the subject, or the stream refuses for a reason that lies in its configuration."""

    error: str


@dataclass(frozen=True, slots=True)
class NotSent:
    """Held back: an earlier event of its key did not get through, or the time was up."""


PublishOutcome: TypeAlias = Published | OutcomeUnknown | RowRejected | NoStream | NotSent


@dataclass(frozen=True, slots=True)
class Leave:
    """Touch nothing: no attempt is spent."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Spend an attempt, note the error, wait ``delay``. The key waits with it."""

    delay: timedelta
    error: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Mark the event dead: kept, alerted, re-publishable by an operator."""

    error: str


FailureAction: TypeAlias = Leave | TryAgain | GiveUp


def after_publish_failure(
    outcome: OutcomeUnknown | RowRejected | NoStream | NotSent,
    attempts: int,
    policy: RetryPolicy,
    chance: float,
) -> FailureAction:
    """The three failure classes of DESIGN §5. ``attempts`` counts those spent before this one."""
    match outcome:
        case OutcomeUnknown() | NotSent():
            return Leave()
        case NoStream(error):
            return TryAgain(policy.backoff.delay(attempts + 1, chance), error)
        case RowRejected(error, final) if final or attempts + 1 >= policy.max_attempts:
            return GiveUp(f"unrecoverable: {error}")
        case RowRejected(error):
            return TryAgain(policy.backoff.delay(attempts + 1, chance), error)
