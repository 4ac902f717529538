"""Operators' actions: requeue or close dead letters, retry failed events, replay published events.

Nothing here happens automatically (building blocks §3.4). Every action is one transaction with its row in the
audit log. For each id it answers whether the action was done, or why not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol
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
from relay.domain.operators import Operator


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for each id: done, or refused with an error that says why."""

    done: tuple[str, ...]
    refused: tuple[tuple[str, RelayError], ...]


class Audited(Protocol):
    """A transaction of an operator. Leaving it commits; an exception rolls it back."""

    async def audit(self, action: str, ids: Sequence[str], by: Operator) -> None:
        """Record who did what to which ids, in this transaction."""


class IncidentChange(Audited, Protocol):
    """Incidents locked for one operator."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """The incidents that were found, in the order of their ids."""

    async def requeue(self, ids: Sequence[int]) -> Sequence[int]:
        """Reset the inbox rows and make them due at once; return the incidents that had a row to reset."""

    async def close(self, ids: Sequence[int], status: IncidentStatus, by: Operator) -> None:
        """Record the decision."""


class IncidentStore(Protocol):
    """The incidents of one context."""

    def change(self, ids: Sequence[int]) -> AbstractAsyncContextManager[IncidentChange]:
        """Lock incidents in one transaction. Raises DatabaseUnreachable."""


class OperateIncidents:
    """Decisions about dead letters (building block 2.4)."""

    def __init__(self, store: IncidentStore) -> None:
        self._store = store

    async def requeue(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Requeue messages in the failing consumer's inbox, with new attempts.

        They do not return to the stream, so no other consumer sees them again. An incident is refused with
        UNKNOWN_INCIDENT, INCIDENT_CLOSED, UNREADABLE_MESSAGE or NOT_REQUEUEABLE. Raises DatabaseUnreachable.
        """
        async with self._store.change(ids) as change:
            wanted, refused = _judge(ids, change.candidates, requeue_refusal)
            done = set(await change.requeue(wanted))
            refused += [(str(id), gone()) for id in wanted if id not in done]
            kept = [id for id in wanted if id in done]
            return await _finish(change, kept, refused, IncidentStatus.REQUEUED, "dlq.requeue", by)

    async def discard(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Give up messages permanently. Raises InvalidRequest without a note.

        An incident is refused with UNKNOWN_INCIDENT or INCIDENT_CLOSED. Raises DatabaseUnreachable.
        """
        return await self._close(ids, IncidentStatus.DISCARDED, "dlq.discard", by)

    async def resolve(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Close incidents that were solved by other means. Otherwise like `discard`."""
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
    """Split ids into those that a rule allows and those that are refused. Unknown ids are refused."""
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
    """The facts that decide about an action on an event. ``failed``: dead, or failed at least once."""

    id: str
    published: bool
    failed: bool


class OutboxChange(Audited, Protocol):
    """Outbox events locked for one operator."""

    @property
    def events(self) -> Sequence[EventState]:
        """The events that were found, in the order of their commits."""

    async def retry(self, ids: Sequence[str]) -> None:
        """Start attempts and back-off again, also for dead events."""

    async def replay(self, ids: Sequence[str]) -> None:
        """Mark published events to be published again in their order, under the next generation."""


class OutboxStore(Protocol):
    """The outbox of one context, for changes by an operator."""

    def change(self, ids: Sequence[UUID]) -> AbstractAsyncContextManager[OutboxChange]:
        """Lock events in one transaction. Waits for publishers that hold them. Raises DatabaseUnreachable."""


class OperateOutbox:
    """Decisions about events (building block 2.5). Nothing is sent here: the relay publishes released events."""

    def __init__(self, store: OutboxStore) -> None:
        self._store = store

    async def retry(self, ids: Sequence[UUID], by: Operator) -> Outcome:
        """Let failed events be tried again. The operation that wrote them is not repeated.

        An event is refused with NOT_PUBLISHABLE if it is unknown, published, or never failed. Raises
        DatabaseUnreachable.
        """
        async with self._store.change(ids) as change:
            wanted, refused = _sort(ids, change.events, _retry_refusal)
            if wanted:
                await change.retry(wanted)
                await change.audit("outbox.retry", wanted, by)
            return Outcome(tuple(wanted), tuple(refused))

    async def replay(self, ids: Sequence[UUID], by: Operator) -> Outcome:
        """Let published events be published again, under a new generation and in their order.

        Consumers that have processed an event recognise its id and skip it. An event is refused with
        NOT_REPLAYABLE if it is unknown or not published. Raises DatabaseUnreachable.
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
    """Split ids into those that a rule allows, in the order of the events, and those that it refuses."""
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
