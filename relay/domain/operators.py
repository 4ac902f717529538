"""What operators do to rows by hand: who acts, which rows an action may change, and the result for each.

Nothing here happens automatically (building blocks §3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from relay.domain.errors import InvalidRequest, NotPublishable, NotReplayable, NotRetryable, RelayError

Id = TypeVar("Id")
State = TypeVar("State")
_MAX_ACTOR_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Operator:
    """Who acts, and why. Raises InvalidRequest if ``actor`` is empty or too long."""

    actor: str
    note: str | None = None

    def __post_init__(self) -> None:
        if not self.actor.strip() or len(self.actor) > _MAX_ACTOR_CHARS:
            raise InvalidRequest(f"must be 1 to {_MAX_ACTOR_CHARS} characters long", field="actor")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for each id: done, or refused with an error that says why."""

    done: tuple[str, ...]
    refused: tuple[tuple[str, RelayError], ...]

    def refusing(self, ids: Container[str]) -> Outcome:
        """Return the outcome with only those refusals that are about these ids."""
        return Outcome(self.done, tuple(refusal for refusal in self.refused if refusal[0] in ids))


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
    """The facts that decide about an action on an event. ``failed``: dead, or failed at least once."""

    published: bool
    failed: bool


def retry_refusal(event: EventState) -> RelayError | None:
    """Why an event cannot be tried again; None if it can."""
    if event.published:
        return NotPublishable("is published", hint="relay outbox replay publishes it once more")
    return None if event.failed else NotPublishable("has not failed: it is published in its turn")


def replay_refusal(event: EventState) -> RelayError | None:
    """Why an event cannot be published again; None if it can."""
    return None if event.published else NotReplayable("is not published yet", hint="relay outbox retry")


# --- messages of the inbox ------------------------------------------------------------------------

_NOT_FAILING: Final = {
    "waiting": "it has not failed: it is handled in its turn",
    "parked": "relay parked release",
}


@dataclass(frozen=True, slots=True)
class MessageState:
    """The fact that decides about an action: waiting, failing, running, parked, dead or processed.

    ``incident``: that of a dead message.
    """

    status: str
    incident: int | None = None


def message_refusal(message: MessageState) -> RelayError | None:
    """Why a message cannot be tried at once; None if it waits for its next attempt."""
    if message.status == "failing":
        return None
    if message.status == "dead":
        return NotRetryable("is dead", hint=f"relay dlq requeue {message.incident or ''}".rstrip())
    return NotRetryable(f"is {message.status}", hint=_NOT_FAILING.get(message.status))
