"""Incidents and runs of cron jobs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from relay.domain.errors import DatabaseUnreachable
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID, ID, shown
from relay.domain.incidents import Letter, RecordedIncident
from relay.domain.schedule import CLAIM, ClaimedRun, RunState, WaitingRun
from relay.domain.traceparent import find, trace_id
from relay.testing.clock import Clock
from relay.testing.inbox import MemoryInbox


class MemoryIncidents:
    """Keeps an incident for each time that a message becomes a dead letter. Tests may read ``letters``."""

    def __init__(self, inbox: MemoryInbox | None = None) -> None:
        self.letters: dict[int, Letter] = {}
        self.down = False
        self._inbox = inbox or MemoryInbox()

    async def record(self, letters: Sequence[Letter]) -> Sequence[RecordedIncident]:
        if self.down:
            raise DatabaseUnreachable("the incidents in memory are down")
        return [self._record(it) for it in letters if not self._is_known(it)]

    def _is_known(self, letter: Letter) -> bool:
        key = letter.message_id, letter.occurrence
        return any((it.message_id, it.occurrence) == key for it in self.letters.values())

    def _record(self, letter: Letter) -> RecordedIncident:
        id, message = len(self.letters) + 1, self._inbox.messages.get(letter.message_id)
        if letter.original is None and message is not None:
            letter = replace(letter, original=message.row.body)
        self.letters[id] = letter
        return RecordedIncident(
            id,
            shown(letter.message_id, letter.originals, ID),
            letter.subscription,
            letter.event_type,
            shown(letter.correlation_id, letter.originals, CORRELATION_ID),
            shown(letter.causation_id, letter.originals, CAUSATION_ID),
            letter.kind.value,
            letter.reason,
            letter.attempts,
            trace_id(find(letter.headers)),
        )


@dataclass(slots=True)
class StoredRun:
    """A row of ``scheduled_runs``."""

    correlation_id: UUID
    state: RunState = RunState.WAITING
    attempts: int = 0
    error: str | None = None
    available_at: datetime | None = None
    token: UUID | None = None
    claimed_until: datetime | None = None


class MemoryRuns:
    """The runs of cron jobs. Tests may read ``runs``."""

    lease = CLAIM

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.runs: dict[tuple[str, datetime], StoredRun] = {}
        self.down = False

    def open(self, run: WaitingRun) -> None:
        """Open a run, as the leading scheduler does. A run that is open stays as it is."""
        self._runs.setdefault((run.job, run.scheduled_for), StoredRun(uuid4()))

    async def claim(self, run: WaitingRun, token: UUID, who: str) -> ClaimedRun | None:
        now, stored = self.clock.now, self._runs.get((run.job, run.scheduled_for))
        if stored is None or any(it is not stored for it in self._started(run.job)):
            return None
        over = stored.claimed_until is not None and stored.claimed_until <= now
        if stored.state is not RunState.WAITING and not (stored.state is RunState.STARTED and over):
            return None
        stored.state, stored.token, stored.claimed_until = RunState.STARTED, token, now + self.lease
        stored.attempts += 1
        return ClaimedRun(run.job, run.scheduled_for, stored.correlation_id, stored.attempts, token)

    async def renew(self, run: ClaimedRun) -> bool:
        if stored := self._held(run):
            stored.claimed_until = self.clock.now + self.lease
        return stored is not None

    async def settle(
        self, run: ClaimedRun, state: RunState, error: str | None = None, delay: timedelta = timedelta()
    ) -> None:
        if stored := self._held(run):
            stored.state, stored.error = state, error
            stored.token = stored.claimed_until = None
            stored.available_at = self.clock.now + delay if state is RunState.WAITING else None

    @property
    def _runs(self) -> dict[tuple[str, datetime], StoredRun]:
        if self.down:
            raise DatabaseUnreachable("the runs in memory are down")
        return self.runs

    def _held(self, run: ClaimedRun) -> StoredRun | None:
        stored = self._runs.get((run.job, run.scheduled_for))
        return stored if stored is not None and stored.token == run.token else None

    def _started(self, job: str) -> list[StoredRun]:
        return [it for (name, _), it in self._runs.items() if name == job and it.state is RunState.STARTED]
