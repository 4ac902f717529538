"""Decisions as values (SDS-047 §3.3, DESIGN §5, §6). Nothing here acts: callers match on the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from relay.domain.errors import StreamMismatch, StreamMissing
from relay.domain.model import HandlerResult, Verdict
from relay.domain.retry import RetryPolicy

# --- consuming: what to do with a message after its handler answered -----------------------------


class DeadLetterClass(Enum):
    """Why a message is dead.

    ``poison``: it is bad; nobody can read it, or its handler answered 422. ``deterministic``: a rule of the
    handler forbids it. ``exhausted``: no attempt is left.
    ``unconfirmed``: a dead letter says so, but no message of the inbox died.
    """

    POISON = "poison"
    DETERMINISTIC = "deterministic"
    EXHAUSTED = "exhausted"
    UNCONFIRMED = "unconfirmed"


@dataclass(frozen=True, slots=True)
class Ack:
    """Processed: record it unless it is already ``settled``, then acknowledge."""

    settled: bool = False


@dataclass(frozen=True, slots=True)
class Doubt:
    """A failure as in an outage of the handler (`relay.domain.circuit`). It may not be the message's fault.

    ``surely``: it is not. ``later``: when the handler itself wants the next call.
    """

    error: str
    surely: bool = False
    later: timedelta | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Route to the dead-letter subject, then acknowledge. ``seconds``: how long the call took."""

    reason: str
    kind: DeadLetterClass
    doubt: Doubt | None = field(default=None, compare=False)
    seconds: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TooLate(DeadLetter):
    """Over without a call, because its time has passed. No dead letter is made of it."""


@dataclass(frozen=True, slots=True)
class Unhandled(DeadLetter):
    """This worker has no handler for it. It is dead only if it does not wait for a worker that has one."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Record the error, and try again after ``delay``. ``counts``: whether this was an attempt.

    A message is not acknowledged. An event holds back the later ones of its key. The first failure of an event
    counts in any case, because it marks the event as the head of its key. ``waits``: until the handler is back, so
    no job is sent for it. ``seconds``: how long the call took.
    """

    delay: timedelta
    error: str
    counts: bool = True
    waits: bool = False
    doubt: Doubt | None = field(default=None, compare=False)
    seconds: float | None = field(default=None, compare=False)


#: A row whose function met a lock of another transaction waits no longer than this.
_HELD_WAIT: Final = timedelta(seconds=10)

Disposition: TypeAlias = Ack | DeadLetter | Retry


#: Why something that is stale was not published, handled or run, in its row.
EXPIRED: Final = "EXPIRED: its time was over before its turn came"
#: Why a message waits that no handler of this worker takes, in its row. Statements look for the word.
UNKNOWN_VERSION: Final = "UNKNOWN_VERSION"
#: How long a repeat is recognised: operators requeue dead letters for weeks.
KEEP: Final = timedelta(days=30)
#: More attempts than anyone can need: no limit.
UNLIMITED_ATTEMPTS: Final = 2**31 - 1


def unanswered(max_attempts: int) -> DeadLetter:
    """The verdict on a row whose last attempt has no answer, because its worker died."""
    reason = f"exhausted: {max_attempts} attempts, the last one without an answer: its worker died or was cut off"
    return DeadLetter(reason, DeadLetterClass.EXHAUSTED)


def decide(
    result: HandlerResult,
    attempts: int,
    policy: RetryPolicy,
    chance: float,
    age: timedelta = timedelta(0),
) -> Disposition:
    """Decide by POL-047-005, -006 and -007. ``attempts`` includes the attempt that gave ``result``.

    ``age``: since when the row could be tried. While it is young, its handler may put it off without an attempt,
    and so do locks of others.
    """
    says = result.delay
    if says is not None and not result.counts:
        says = policy.granted(says, chance)
    match result.verdict:
        case Verdict.PROCESSED | Verdict.ALREADY_PROCESSED:
            return Ack(result.settled)
        case Verdict.POISON:
            return DeadLetter(result.detail, DeadLetterClass.POISON)
        case Verdict.REFUSED | Verdict.UNKNOWN:
            kind = Unhandled if result.verdict is Verdict.UNKNOWN else DeadLetter
            return kind(result.detail, DeadLetterClass.DETERMINISTIC)
        case Verdict.TRANSIENT if _is_free(result, says, age < policy.patience):
            usual = (
                min(policy.backoff.by_age(age, chance), _HELD_WAIT)
                if result.held
                else policy.backoff.delay(1, chance)
            )
            return Retry(usual if says is None else says, result.detail, counts=False)
        case Verdict.TRANSIENT if not result.final and (wait := policy.after(attempts, chance, says)) is not None:
            return Retry(wait, result.detail)
        case Verdict.TRANSIENT:
            reason = f"exhausted: {attempts} attempts, the last one: {result.detail}"
            return DeadLetter(reason, DeadLetterClass.EXHAUSTED)


def _is_free(result: HandlerResult, says: timedelta | None, young: bool) -> bool:
    """Whether a failure spends no attempt."""
    if result.held:
        return young and not result.final
    return not result.counts and (young or says is None)


# --- publishing: what to do with an event after the broker answered, or did not -------------------

#: What an operator does about an event that no stream takes.
_MEND: Final = "mend relay.toml or the event's stream, run relay streams ensure, then relay outbox retry"


class Published(NamedTuple):
    """The PubAck: the stream holds the event at ``seq``. ``duplicate``: it already held the event.

    ``seconds``: from the sending of the event to its PubAck.
    """

    stream: str
    seq: int
    duplicate: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """No answer in time, or the broker accepts nothing now. The event may or may not be stored."""

    error: str


@dataclass(frozen=True, slots=True)
class RowRejected:
    """This event itself is at fault: too large, invalid subject, invalid payload.

    ``final``: False if the reason is also a limit of the stream, because an operator can raise that limit.
    """

    error: str
    final: bool = True


@dataclass(frozen=True, slots=True)
class NoStream:
    """No stream accepts the subject, or the stream refuses because of its configuration.

    ``sure``: whether the server says so. Other clients can give such an answer, too.
    """

    error: str
    sure: bool = True

    @classmethod
    def missing(cls, subject: str) -> NoStream:
        """The outcome when no stream has a pattern for the subject."""
        return cls(str(StreamMissing(f"no stream takes the subject {subject}", hint=_MEND)))

    @classmethod
    def mismatch(cls, subject: str, stream: str) -> NoStream:
        """The outcome when another stream has the subject than the one that the event names."""
        return cls(str(StreamMismatch(f"the subject {subject} is not that of the stream {stream}", hint=_MEND)))


@dataclass(frozen=True, slots=True)
class NotSent:
    """Not sent: an earlier event of its key was not acknowledged, or the claim's time was over."""


@dataclass(frozen=True, slots=True)
class Paused:
    """Not sent: an operator has paused its type. Look again after ``delay``. It holds back its key meanwhile."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class Expired:
    """Not sent, and over: its time had passed, by the clock of the database. ``at``: then."""

    at: str


PublishOutcome: TypeAlias = Published | OutcomeUnknown | RowRejected | NoStream | NotSent | Paused | Expired
#: Why an event of a paused type was not sent, in its row. Statements look for the word before the colon.
EVENTS_PAUSED: Final = "EVENTS_PAUSED: events of this type are paused (relay outbox resume --type)"


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Mark the event dead: it is kept, an alert is sent, and an operator can publish it again."""

    error: str


def after_publish_failure(
    outcome: OutcomeUnknown | RowRejected | NoStream | NotSent | Paused | Expired,
    attempts: int,
    policy: RetryPolicy,
    chance: float,
    age: timedelta,
) -> Retry | GiveUp | None:
    """Decide by the three failure classes of DESIGN §5. None: change nothing, and count no attempt.

    ``attempts``: the attempts counted before this one. ``age``: the age of the event. While no stream takes the
    event, an operator has to act: no attempt is spent, and the back-off depends on the age.
    """
    match outcome:
        case OutcomeUnknown() | NotSent() | Expired():
            return None
        case Paused(wait):
            return Retry(wait, EVENTS_PAUSED, counts=False)
        case NoStream(error, sure=False):
            return Retry(policy.backoff.delay(1, chance), error, counts=False)
        case NoStream(error):
            return Retry(policy.backoff.by_age(age, chance), error, counts=False)
        case RowRejected(error, final=False) if (delay := policy.after(attempts + 1, chance)) is not None:
            return Retry(delay, error)
        case RowRejected(error):
            return GiveUp(f"unrecoverable: {error}")
