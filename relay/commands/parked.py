"""Keys that are set aside behind a dead letter, and how an operator lets them go on (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from relay.commands.operate import Audited, Operator, Outcome
from relay.domain.errors import NotParked, RelayError, UnreadableMessage
from relay.domain.incidents import IncidentStatus, gone


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """A key set aside: ``since`` when, by the death of which ``head`` and why, and how many wait behind it."""

    subscription: str
    key: str
    since: datetime
    head: UUID
    reason: str
    waiting: int


@dataclass(frozen=True, slots=True)
class ParkedCandidate:
    """What decides over the release of one key. ``incident``: that of its head, once it is recorded."""

    subscription: str
    key: str
    dead: bool
    readable: bool
    incident: int | None

    @property
    def name(self) -> str:
        """How the audit log and answers name it."""
        return f"{self.subscription}/{self.key}"


class ParkedChange(Audited, Protocol):
    """Parked keys locked for one operator."""

    @property
    def candidates(self) -> Sequence[ParkedCandidate]:
        """The keys found, the longest parked first."""

    async def requeue(self, incidents: Sequence[int]) -> Sequence[int]:
        """Put dead heads back to the head of their keys; returns the incidents for which there was one."""

    async def close(self, ids: Sequence[int], status: IncidentStatus, by: Operator) -> None:
        """Note the decision over the heads' incidents."""

    async def release(self, keys: Sequence[ParkedCandidate]) -> None:
        """Let the keys go on."""


class ParkedStore(Protocol):
    """The parked keys of one context. Both raise DatabaseUnreachable."""

    async def list(self) -> Sequence[ParkedKey]:
        """All of them, the longest parked first."""

    def change(
        self, keys: Sequence[str] | None, subscription: str | None
    ) -> AbstractAsyncContextManager[ParkedChange]:
        """Lock keys by name, or all, in one transaction."""


class ReleaseParked:
    """Lets parked keys go on in their order: the dead head first, with new attempts, then what waits behind it."""

    def __init__(self, store: ParkedStore) -> None:
        self._store = store

    async def __call__(self, keys: Sequence[str] | None, subscription: str | None, by: Operator) -> Outcome:
        """Release keys by name, or all (None), of one subscription or of every one that parked them.

        Refused with NOT_PARKED, UNREADABLE_MESSAGE, or NOT_REQUEUEABLE while the head's dead letter is not
        recorded yet. Raises DatabaseUnreachable.
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
    """Why a key must stay parked. One whose head is no longer dead just goes on."""
    if not candidate.dead:
        return None
    if not candidate.readable:
        return UnreadableMessage(
            "its head could not be read, so no handler can be asked again",
            hint="discard or resolve the head's incident (relay dlq list): the key then goes on without it",
        )
    return gone() if candidate.incident is None else None
