"""What happened in a run, as records that outlive every process: one JSON object a line, append only.

Each writing process has its own file, so a killed process damages at most the last line of one file.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias


def now() -> float:
    """Unix time, of this host's clock even in a process whose own is shifted (see `levers`)."""
    return time.clock_gettime(time.CLOCK_REALTIME)


class Outcome(StrEnum):
    """What a producer knows of its transaction. UNKNOWN is settled at the end from the business table."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """The subscription that an event is for; also its event type."""

    HTTP = "http"
    """A service answers, and keeps its effect in its own transaction. ``settle = "handler"``."""
    PYTHON = "python"
    """A Python handler in the inbox transaction. ``settle = "inbox"``."""
    ORDERED = "ordered"
    """The same with ``order = "key"`` and ``failed_head = "skip"``."""
    SLOW = "slow"
    """The service again, in order by key: some calls take longer than a lease, and all of them may hang."""


#: Subscriptions with ``order = "key"``.
ORDERED: Final = frozenset({Source.ORDERED, Source.SLOW})
#: Subscriptions whose handler answers at once, and whose messages wait for no other.
QUICK: Final = frozenset({Source.HTTP, Source.PYTHON})


class Plan(StrEnum):
    """What the handler is going to answer; a function of the event's id and the seed."""

    ACCEPT = "accept"
    REPEAT = "repeat"
    """409 without an effect, as if it were known."""
    POISON = "poison"
    """422: a dead letter of class poison, no effect."""
    FLAKY = "flaky"
    """503 some times, from a service with Retry-After, then 200."""
    HANG = "hang"
    """No answer to the first call, then 200."""
    DROP = "drop"
    """The effect is committed and the connection dropped before the answer, at the first call."""
    NEVER = "never"
    """503 for ever: a dead letter of class exhausted, no effect."""


@dataclass(frozen=True, slots=True)
class Produced:
    """One event as its producer sees it. ``bad``: an outbox row that can never be published."""

    id: str
    source: Source
    key: str
    plan: Plan
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One producer transaction: a business row for each event, and the events. ``at``: Unix time, as always."""

    number: int
    kind: str
    """one | batch | rollback | bad"""
    outcome: Outcome
    events: Sequence[Produced]
    at: float


#: It is in the note of a fault if a command of `relay` ended with a traceback instead of an error with a code.
CRASHED: Final = "crashed with"


#: In the note of a hang that began while a busy machine had other work left: what waits beside it tells nothing.
BEHIND: Final = "the fleet had not caught up"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, from its injection to the moment it was healed."""

    number: int
    kind: str
    target: str
    began: float
    ended: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """A handler call that has begun in process ``pid``. ``began``: seconds of the host's monotonic clock."""

    message_id: str
    source: Source
    began: float
    pid: int


@dataclass(frozen=True, slots=True)
class Call:
    """One handler call as the handler saw it, and its answer (ok | repeat | poison | error | hang | drop).

    ``at``: its end. ``began``, ``ended``, ``pid``: as in `Begun`, so that calls of all processes compare. A call
    ends with the handler, or for a service when its caller hangs up.
    """

    message_id: str
    source: Source
    answer: str
    at: float
    began: float = 0.0
    ended: float = 0.0
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """The counts of a moment. None: the database did not answer."""

    at: float
    committed: int
    published: int | None
    handled: int | None
    """Inbox rows processed or dead-lettered."""
    outbox: int | None
    """Events that wait to be published."""
    inbox: int | None
    """Messages that wait to be handled."""
    delivered: Mapping[str, int] | None = None
    """By subscription: how far JetStream has delivered. None: nats-server did not answer."""
    pending: Mapping[str, int] | None = None
    """By subscription: messages that nobody has fetched yet."""


@dataclass(frozen=True, slots=True)
class Business:
    """A row of the business table at the end: the event is committed, the ``place``-th of its key."""

    event_id: str
    key: str
    place: int


@dataclass(frozen=True, slots=True)
class OutboxState:
    """An outbox row at the end: published | dead | waiting."""

    id: str
    state: str
    stream_seq: int | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of the event stream at the end, in stream order. ``id`` is the event's, without a generation."""

    seq: int
    id: str
    at: float = 0.0
    """When nats-server stored it."""


@dataclass(frozen=True, slots=True)
class InboxState:
    """An inbox row at the end: processed | dead-lettered | open."""

    id: str
    source: str
    state: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Effect:
    """A committed effect of a handler; ``place`` grows in the order in which effects were committed."""

    message_id: str
    source: Source
    key: str
    place: int


@dataclass(frozen=True, slots=True)
class Incident:
    """A dead letter as recorded in the incidents table: poison | deterministic | exhausted."""

    message_id: str
    source: str
    kind: str
    attempts: int


@dataclass(frozen=True, slots=True)
class ConsumerEnd:
    """What JetStream says of a durable consumer at the end."""

    name: str
    pending: int
    ack_pending: int
    ack_floor: int
    """Every message for it up to this stream sequence is acknowledged."""
    last_seq: int
    """The last message of the stream that its filter takes; 0: none. A floor below it is a message given up."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Events that the stream lost by a fault, or that were deleted from it. No order is expected of them."""

    fault: int
    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class SetBack:
    """Events that the producer's database has lost, because it was set back. ``decision``: adopt | report."""

    fault: int
    ids: Sequence[str]
    decision: str


@dataclass(frozen=True, slots=True)
class Orphan:
    """What the producer knows at the end of an event that its outbox had not: reported | open.

    Or a ``notice``: the event that reports others to the consumers.
    """

    id: str
    state: str


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """What `relay doctor` said of a cause that held a backlog still.

    ``named``: the seconds until an error named it; ``gone``: from its healing until no error did. None: too long.
    ``found``: the codes of the last errors before it was healed.
    """

    fault: int
    cause: str
    named: float | None
    gone: float | None
    found: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """An alert that came to the webhook, about ``count`` failures. ``taken``: it was answered with 200."""

    context: str
    kind: str
    count: int
    taken: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """A final failure at the end, and how many alerts there are about it, and how many the webhook has taken."""

    context: str
    kind: str
    id: str
    alerts: int
    posted: int


@dataclass(frozen=True, slots=True)
class Posted:
    """How many alerts of a class the webhook has taken, as the database of a context says."""

    context: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class Hostile:
    """A message that somebody else put into the stream, at ``seq``, which nobody can handle."""

    fault: int
    id: str
    seq: int
    stand_in: str
    """Under this id the inbox keeps it."""


@dataclass(frozen=True, slots=True)
class Twins:
    """Messages in another stream of the context, with the ids of events."""

    fault: int
    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Noted:
    """How often a subscription beside those of the sources has handled a message (`chaos.readers`)."""

    subscription: str
    message_id: str
    count: int


@dataclass(frozen=True, slots=True)
class Forged:
    """How many letters somebody else put into the stream of dead letters: forged ones, and under foreign ids."""

    fault: int
    count: int


@dataclass(frozen=True, slots=True)
class Strange:
    """Rows that a stranger has put into an outbox. ``stay``: none of them may be published."""

    fault: int
    ids: Sequence[str]
    stay: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """A task that waits beside a fault. ``began``: when it was committed; ``ran``: when it ran, None if never."""

    fault: int
    began: float
    ran: float | None


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a call of a handler found in its session that it did not put there."""

    message_id: str
    what: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Processes that ended by themselves during a fault that must end none."""

    fault: int
    processes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Letters:
    """What dead letters became: messages of their stream, dead rows without an incident, unconfirmed incidents."""

    stored: int
    unrecorded: int
    unconfirmed: int


@dataclass(frozen=True, slots=True)
class Operated:
    """What an operator did: replay | requeue, with events or messages; run, with jobs."""

    fault: int
    action: str
    ids: Sequence[str]
    at: float


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of a cron job. ``done``: it ran to its end. Otherwise it was cancelled."""

    job: str
    began: float
    ended: float
    done: bool


WrittenInRun: TypeAlias = (
    Operation
    | Fault
    | Begun
    | Call
    | Sample
    | Lost
    | SetBack
    | Diagnosed
    | Receipt
    | Hostile
    | Forged
    | Strange
    | Probe
    | Leftover
    | Ended
    | Twins
    | Operated
    | Ran
)
ReadAtEnd: TypeAlias = (
    Business
    | OutboxState
    | Orphan
    | Stored
    | InboxState
    | Effect
    | Noted
    | Incident
    | Letters
    | Failure
    | Posted
    | ConsumerEnd
)
Record: TypeAlias = WrittenInRun | ReadAtEnd


class History:
    """Appends records to a file; a line is written with one call, so records of several threads do not mix."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def write(self, *records: Record) -> None:
        """Append records. When this returns, the operating system has them."""
        lines = b"".join(
            json.dumps({"record": type(record).__name__, **asdict(record)}).encode() + b"\n" for record in records
        )
        with self._lock:
            self._file.write(lines)

    def begin(self, message_id: str, source: Source) -> Begun:
        """Record that a handler call begins."""
        begun = Begun(message_id, source, time.monotonic(), os.getpid())
        self.write(begun)
        return begun

    def end(self, begun: Begun, answer: str, ended: float | None = None) -> None:
        """Record the end of a call: now, unless it was earlier on the monotonic clock."""
        ended = time.monotonic() if ended is None else ended
        at = now() - (time.monotonic() - ended)
        self.write(Call(begun.message_id, begun.source, answer, at, begun.began, ended, begun.pid))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
