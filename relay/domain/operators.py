"""What operators do to rows by hand: who acts, which rows an action may change, and the result for each.

Nothing here happens automatically (building blocks §3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from uuid import UUID

from relay.domain.errors import (
    InvalidRequest,
    NotPublishable,
    NotReplayable,
    NotRetryable,
    NotStoppable,
    NotStopped,
    RelayError,
    Stale,
)

Id = TypeVar("Id")
State = TypeVar("State")
_MAX_ACTOR_CHARS: Final = 200
#: The class of a message whose time was over before its call: it counts as processed, too.
EXPIRED: Final = "expired"
#: How a stale row goes on.
LONGER: Final = "--expires-in 10m gives it a new time, never lets it go on whatever the time"
#: The class of a message that an operator has given up: it counts as processed, and no handler had it.
DISCARDED: Final = "discarded"


@dataclass(frozen=True, slots=True)
class Operator:
    """Who acts, and why. Raises InvalidRequest if ``actor`` is empty or too long.

    ``selection``: the rows that were counted for the act, which uses it up. ``undoes``: the act that this one
    takes back. ``about``: what the audit log says of the act besides.
    """

    actor: str
    note: str | None = None
    selection: UUID | None = None
    undoes: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.actor.strip() or len(self.actor) > _MAX_ACTOR_CHARS:
            raise InvalidRequest(f"must be 1 to {_MAX_ACTOR_CHARS} characters long", field="actor")

    @property
    def besides(self) -> Operator:
        """The operator of what an act does besides: it uses up no selection, and undoes nothing."""
        return replace(self, selection=None, undoes=None, about={})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for each id: done, or refused with an error that says why.

    ``deed``: the number of the act in the audit log, if anything was done. ``left``: how many rows fit the filter
    besides those that were counted. ``gone``: how many of these did not fit any more.
    """

    done: tuple[str, ...]
    refused: tuple[tuple[str, RelayError], ...]
    deed: int | None = None
    left: int = 0
    gone: int = 0

    def refusing(self, ids: Container[str]) -> Outcome:
        """Return the outcome with only those refusals that are about these ids."""
        return replace(self, refused=tuple(refusal for refusal in self.refused if refusal[0] in ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The rows that were counted for an act: only these are changed, whatever comes later.

    ``kind`` and ``action``: of `relay.ops.kinds`. ``ids`` None: rows in files, as ``wanted`` says. ``wanted``: the
    filter that found them, as JSON; None for ids that somebody chose. ``deed``: the act that has used it.
    """

    kind: str
    action: str
    ids: tuple[str, ...] | None
    wanted: Mapping[str, Any] | None = None
    deed: int | None = None


def judge(
    ids: Iterable[Id],
    found: Mapping[Id, State],
    refusal: Callable[[State], RelayError | None],
    unknown: Callable[[Id], RelayError],
) -> tuple[list[Id], list[tuple[str, RelayError]]]:
    """Split ids into those that a rule allows, in the order of ``found``, and those that are refused."""
    judged = [(id, refusal(state)) for id, state in found.items()]
    missing = [(str(id), unknown(id)) for id in dict.fromkeys(ids) if id not in found]
    wanted = [id for id, error in judged if error is None]
    return wanted, [*((str(id), error) for id, error in judged if error is not None), *missing]


# --- events of the outbox -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventState:
    """The facts that decide about an action on an event. ``failed``: dead, or failed at least once.

    ``discarded``: an operator has given it up. ``expired``: its time was over first. Then it is not ``published``.
    ``stale``: its time is over.
    """

    published: bool
    failed: bool
    discarded: bool = False
    expired: bool = False
    stale: bool = False


def stale() -> RelayError:
    """The refusal if a row is worth nothing any more, and gets no new time."""
    return Stale("is stale: its time is over", hint=LONGER)


def retry_refusal(event: EventState) -> RelayError | None:
    """Why an event cannot be tried again; None if it can."""
    if event.expired:
        return NotPublishable("is expired", hint=f"relay outbox reopen: {LONGER}")
    if event.discarded:
        return NotPublishable("is discarded", hint="relay outbox reopen lets it go on")
    if event.published:
        return NotPublishable("is published", hint="relay outbox replay publishes it once more")
    if not event.failed:
        return NotPublishable("has not failed: it is published in its turn")
    return stale() if event.stale else None


def replay_refusal(event: EventState) -> RelayError | None:
    """Why an event cannot be published again; None if it can."""
    if not event.published:
        return NotReplayable("is not published yet", hint="relay outbox retry")
    return stale() if event.stale else None


def discard_refusal(event: EventState) -> RelayError | None:
    """Why an event cannot be given up; None if it is not in the stream yet."""
    if event.published:
        return NotStoppable("is published", hint="its consumers can discard it: relay inbox list")
    if event.expired:
        return NotStoppable("is expired: nobody gets it")
    return NotStoppable("is discarded already") if event.discarded else None


def reopen_refusal(event: EventState) -> RelayError | None:
    """Why an event cannot go on; None if it is discarded or expired, and has time left."""
    if not (event.discarded or event.expired):
        return NotStopped("is not discarded", hint="relay outbox list --status discarded")
    return stale() if event.stale else None


# --- messages of the inbox ------------------------------------------------------------------------

_NOT_FAILING: Final = {
    "waiting": "it has not failed: it is handled in its turn",
    "parked": "relay parked release",
    "held": "relay inbox release",
    "discarded": "relay inbox reopen",
    "expired": "relay inbox reopen",
}


@dataclass(frozen=True, slots=True)
class MessageState:
    """The fact that decides about an action: the state of the message, such as waiting or running.

    ``incident``: that of a dead message. ``stale``: its time is over.
    """

    status: str
    incident: int | None = None
    stale: bool = False


def message_refusal(message: MessageState) -> RelayError | None:
    """Why a message cannot be tried at once; None if it waits for its next attempt."""
    if message.status == "failing":
        return stale() if message.stale else None
    if message.status == "dead":
        return NotRetryable("is dead", hint=f"relay dlq requeue {message.incident or ''}".rstrip())
    return NotRetryable(f"is {message.status}", hint=_NOT_FAILING.get(message.status))


def hold_refusal(message: MessageState) -> RelayError | None:
    """Why a message cannot be set aside; None if it is neither over nor in work."""
    return NotStoppable("is held already") if message.status == "held" else _stop_refusal(message, "held")


def message_discard_refusal(message: MessageState) -> RelayError | None:
    """Why a message cannot be given up; None if it is neither over nor in work."""
    return _stop_refusal(message, "discarded")


def _stop_refusal(message: MessageState, what: str) -> RelayError | None:
    match message.status:
        case "running":
            return NotStoppable(f"is in work, not {what}", hint="once it has ended: the same again, if it failed")
        case "dead":
            return NotStoppable("is dead", hint=f"relay dlq discard {message.incident or ''}".rstrip())
        case "processed" | "discarded" | "expired" as status:
            return NotStoppable(f"is {status}")
    return None


def release_refusal(message: MessageState) -> RelayError | None:
    """Why a message cannot be released; None if it is held."""
    if message.status == "held":
        return None
    return NotStopped(f"is not held but {message.status}", hint="relay inbox list --status held")


def message_reopen_refusal(message: MessageState) -> RelayError | None:
    """Why a message cannot go on; None if it is discarded or expired, and has time left."""
    if message.status in (DISCARDED, EXPIRED):
        return stale() if message.stale else None
    return NotStopped(f"is not discarded but {message.status}", hint="relay inbox list --status discarded")
