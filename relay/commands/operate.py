"""What operators do: put dead letters back or close them, retry failed events, replay published ones.

Nothing here happens by itself (building blocks §3.4). Every action is one transaction with its row in the
audit log, and answers for each id whether it was done or why not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from relay.domain.errors import InvalidRequest, NotPublishable, NotReplayable, RelayError
from relay.domain.incidents import (
    Candidate,
    IncidentStatus,
    close_refusal,
    gone,
    requeue_refusal,
    unknown,
)

_ACTOR_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class Operator:
    """Who acts, and why. Raises InvalidRequest when nobody does."""

    actor: str
    note: str | None = None

    def __post_init__(self) -> None:
        if not self.actor.strip() or len(self.actor) > _ACTOR_LIMIT:
            raise InvalidRequest(f"must be 1 to {_ACTOR_LIMIT} characters long", field="actor")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of each id: done, or refused with an error that says why."""

    done: tuple[str, ...]
    refused: tuple[tuple[str, RelayError], ...]


class Audited(Protocol):
    """A transaction of an operator. Leaving it commits, an exception rolls it back."""

    async def audit(self, action: str, ids: Sequence[str], by: Operator) -> None:
        """Write who did what to which, in this transaction."""


class IncidentChange(Audited, Protocol):
    """Incidents locked for one operator."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """The incidents found, in the order of their ids."""

    async def requeue(self, ids: Sequence[int]) -> Sequence[int]:
        """Reset the inbox rows, due at once; returns the incidents for which there was one to reset."""

    async def close(self, ids: Sequence[int], status: IncidentStatus, by: Operator) -> None:
        """Note the decision."""


class IncidentStore(Protocol):
    """The incidents of one context."""

    def change(self, ids: Sequence[int]) -> AbstractAsyncContextManager[IncidentChange]:
        """Lock incidents in one transaction. Raises DatabaseUnreachable."""


class OperateIncidents:
    """Decisions over dead letters (building block 2.4)."""

    def __init__(self, store: IncidentStore) -> None:
        self._store = store

    async def requeue(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Put messages back into the failing consumer's inbox, with new attempts.

        Never into the stream, so no other consumer sees them again. Refused with UNKNOWN_INCIDENT,
        INCIDENT_CLOSED, UNREADABLE_MESSAGE or NOT_REQUEUEABLE. Raises DatabaseUnreachable.
        """
        async with self._store.change(ids) as change:
            wanted, refused = _judge(ids, change.candidates, requeue_refusal)
            done = set(await change.requeue(wanted))
            refused += [(str(id), gone()) for id in wanted if id not in done]
            kept = [id for id in wanted if id in done]
            return await _finish(change, kept, refused, IncidentStatus.REQUEUED, "dlq.requeue", by)

    async def discard(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Give messages up for good. Needs a note; refused with UNKNOWN_INCIDENT or INCIDENT_CLOSED."""
        return await self._close(ids, IncidentStatus.DISCARDED, "dlq.discard", by)

    async def resolve(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Close incidents that were dealt with by other means. As `discard`."""
        return await self._close(ids, IncidentStatus.RESOLVED, "dlq.resolve", by)

    async def _close(self, ids: Sequence[int], status: IncidentStatus, action: str, by: Operator) -> Outcome:
        if not (by.note or "").strip():
            raise InvalidRequest("say why", field="note")
        async with self._store.change(ids) as change:
            wanted, refused = _judge(ids, change.candidates, close_refusal)
            return await _finish(change, wanted, refused, status, action, by)


async def _finish(
    change: IncidentChange,
    done: Sequence[int],
    refused: Sequence[tuple[str, RelayError]],
    status: IncidentStatus,
    action: str,
    by: Operator,
) -> Outcome:
    ids = tuple(str(id) for id in done)
    if ids:
        await change.close(done, status, by)
        await change.audit(action, ids, by)
    return Outcome(ids, tuple(refused))


def _judge(
    ids: Sequence[int], candidates: Sequence[Candidate], refusal: Callable[[Candidate], RelayError | None]
) -> tuple[list[int], list[tuple[str, RelayError]]]:
    """Split ids into those a rule admits and those it refuses, unknown ones included."""
    found = {candidate.id: candidate for candidate in candidates}
    wanted: list[int] = []
    refused: list[tuple[str, RelayError]] = []
    for id in dict.fromkeys(ids):
        error = refusal(found[id]) if id in found else unknown(id)
        if error is None:
            wanted.append(id)
        else:
            refused.append((str(id), error))
    return wanted, refused


# --- the outbox -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventState:
    """What decides over an action on one outbox event. ``failed``: dead, or it has failed at least once."""

    id: str
    published: bool
    failed: bool


class OutboxChange(Audited, Protocol):
    """Outbox events locked for one operator."""

    @property
    def events(self) -> Sequence[EventState]:
        """The events found, in the order of their commits."""

    async def retry(self, ids: Sequence[str]) -> None:
        """Start attempts and back-off again, dead events included."""

    async def replay(self, ids: Sequence[str]) -> None:
        """Mark published events for another publication under the next generation, in their order."""


class OutboxStore(Protocol):
    """The outbox of one context, as an operator changes it."""

    def change(self, ids: Sequence[UUID]) -> AbstractAsyncContextManager[OutboxChange]:
        """Lock events in one transaction, waiting for publishers that hold them. Raises DatabaseUnreachable."""


class OperateOutbox:
    """Decisions over events (building block 2.5). The relay publishes what they let go; nothing is sent here."""

    def __init__(self, store: OutboxStore) -> None:
        self._store = store

    async def retry(self, ids: Sequence[UUID], by: Operator) -> Outcome:
        """Let failed events be published again, without touching the operation that wrote them.

        Refused with NOT_PUBLISHABLE: unknown, published, or never failed. Raises DatabaseUnreachable.
        """
        async with self._store.change(ids) as change:
            wanted, refused = _sort(ids, change.events, _retry_refusal)
            if wanted:
                await change.retry(wanted)
                await change.audit("outbox.retry", wanted, by)
            return Outcome(tuple(wanted), tuple(refused))

    async def replay(self, ids: Sequence[UUID], by: Operator) -> Outcome:
        """Let published events be published again, under a new generation and in their order.

        Consumers that have processed an event recognise its id and skip it. Refused with NOT_REPLAYABLE:
        unknown, or not published. Raises DatabaseUnreachable.
        """
        async with self._store.change(ids) as change:
            wanted, refused = _sort(ids, change.events, _replay_refusal)
            if wanted:
                await change.replay(wanted)
                await change.audit("outbox.replay", wanted, by)
            return Outcome(tuple(wanted), tuple(refused))


def _sort(
    ids: Sequence[UUID],
    events: Sequence[EventState],
    refusal: Callable[[EventState | None], RelayError | None],
) -> tuple[list[str], list[tuple[str, RelayError]]]:
    """Split ids into those a rule admits, in the order of the events, and those it refuses."""
    found = {event.id: event for event in events}
    missing = [str(id) for id in dict.fromkeys(ids) if str(id) not in found]
    judged = [(id, refusal(found.get(id))) for id in [*found, *missing]]
    wanted = [id for id, error in judged if error is None]
    return wanted, [(id, error) for id, error in judged if error is not None]


def _retry_refusal(event: EventState | None) -> RelayError | None:
    if event is None:
        return NotPublishable("there is no such event", hint="relay outbox list")
    if event.published:
        return NotPublishable("is published", hint="relay outbox replay publishes it once more")
    return None if event.failed else NotPublishable("has not failed: it is published in its turn")


def _replay_refusal(event: EventState | None) -> RelayError | None:
    if event is None:
        return NotReplayable("there is no such event", hint="relay outbox list --status published")
    return None if event.published else NotReplayable("is not published yet", hint="relay outbox retry")
