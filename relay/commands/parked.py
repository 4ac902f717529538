"""Keys that are parked behind a dead letter, and how an operator releases them (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from relay.commands.operate import Audited, Outcome
from relay.domain.errors import NotParked, RelayError, UnreadableMessage
from relay.domain.incidents import IncidentStatus, gone
from relay.domain.operators import Operator


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """A parked key: ``since`` when, the dead ``head`` and its reason, and how many messages wait behind it."""

    subscription: str
    key: str
    since: datetime
    head: UUID
    reason: str
    waiting: int


@dataclass(frozen=True, slots=True)
class ParkedCandidate:
    """The facts that decide whether a key may be released. ``incident``: the head's, after it is recorded."""

    subscription: str
    key: str
    dead: bool
    readable: bool
    incident: int | None

    @property
    def name(self) -> str:
        """The name of the key in the audit log and in answers."""
        return f"{self.subscription}/{self.key}"


class ParkedChange(Audited, Protocol):
    """Parked keys locked for one operator."""

    @property
    def candidates(self) -> Sequence[ParkedCandidate]:
        """The keys that were found, the longest parked first."""

    async def requeue(self, incidents: Sequence[int]) -> Sequence[int]:
        """Requeue dead messages at the head of their keys; return the incidents that had such a message."""

    async def close(self, ids: Sequence[int], status: IncidentStatus, by: Operator) -> None:
        """Record the decision about the heads' incidents."""

    async def release(self, keys: Sequence[ParkedCandidate]) -> None:
        """Let the messages of the keys run again."""


class ParkedStore(Protocol):
    """The parked keys of one context. Both methods raise DatabaseUnreachable."""

    async def list(self) -> Sequence[ParkedKey]:
        """All parked keys, the longest parked first."""

    def change(
        self, keys: Sequence[str] | None, subscription: str | None
    ) -> AbstractAsyncContextManager[ParkedChange]:
        """Lock keys by name, or all keys (None), in one transaction."""


class ReleaseParked:
    """Releases parked keys in order: first the dead head, with new attempts, then the messages behind it."""

    def __init__(self, store: ParkedStore) -> None:
        self._store = store

    async def __call__(self, keys: Sequence[str] | None, subscription: str | None, by: Operator) -> Outcome:
        """Release keys by name, or all keys (None), of one subscription or of all subscriptions (None).

        A key is refused with NOT_PARKED, UNREADABLE_MESSAGE, or NOT_REQUEUEABLE while the head's dead letter is
        not recorded yet. Raises DatabaseUnreachable.
        """
        async with self._store.change(keys, subscription) as change:
            found = {candidate.key for candidate in change.candidates}
            missing = [key for key in dict.fromkeys(keys or ()) if key not in found]
            refused = [(key, _unknown()) for key in missing]
            judged = [(candidate, _refusal(candidate)) for candidate in change.candidates]
            refused += [(candidate.name, error) for candidate, error in judged if error is not None]
            wanted = [candidate for candidate, error in judged if error is None]
            done = tuple(candidate.name for candidate in wanted)
            if wanted:
                await _release(change, wanted, by)
                await change.audit("parked.release", done, by)
            return Outcome(done, tuple(refused))


async def _release(change: ParkedChange, wanted: Sequence[ParkedCandidate], by: Operator) -> None:
    heads = [it.incident for it in wanted if it.dead and it.incident is not None]
    requeued = await change.requeue(heads)
    if requeued:
        await change.close(requeued, IncidentStatus.REQUEUED, by)
        await change.audit("dlq.requeue", [str(id) for id in requeued], by)
    await change.release(wanted)


def _unknown() -> RelayError:
    return NotParked("is not parked", hint="relay parked list")


def _refusal(candidate: ParkedCandidate) -> RelayError | None:
    """Why a key must stay parked; None if it may be released, as when its head is no longer dead."""
    if not candidate.dead:
        return None
    if not candidate.readable:
        return UnreadableMessage(
            "its head could not be read, so no handler can be asked again",
            hint="discard or resolve the head's incident (relay dlq list): the key then goes on without it",
        )
    return gone() if candidate.incident is None else None
