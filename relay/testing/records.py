"""Incidents and runs of cron jobs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from relay.domain.errors import DatabaseUnreachable
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID, ID, shown
from relay.domain.incidents import RecordedIncident
from relay.domain.letters import Letter, Match
from relay.domain.policies import DeadLetterClass
from relay.domain.schedule import CLAIM, ClaimedRun, RunState, WaitingRun
from relay.domain.traceparent import find, trace_id
from relay.ports import Compared, DeadPlace
from relay.testing.clock import Clock
from relay.testing.inbox import MemoryInbox, StoredMessage


class MemoryIncidents:
    """Keeps an incident for each time that a message dies. Tests may read ``letters``: what each incident says."""

    def __init__(self, inbox: MemoryInbox | None = None) -> None:
        self.letters: dict[int, Letter] = {}
        self.down = False
        self._inbox = inbox or MemoryInbox()

    async def record_rows(self, ids: Sequence[UUID]) -> Sequence[RecordedIncident]:
        self._check()
        dead = [it for id in ids if (it := self._inbox.messages.get(id)) is not None and _died(it)]
        return [self._record(it) for it in map(_of_row, dead) if not self._is_known(it)]

    async def record_letters(self, letters: Sequence[Letter]) -> Sequence[RecordedIncident]:
        self._check()
        found: list[RecordedIncident] = []
        for letter in letters:
            match = self._match(letter)
            if match is Match.DEAD:
                found += await self.record_rows([letter.message_id])
            elif match is not Match.KNOWN and not self._is_known(own := letter.unconfirmed(match)):
                found.append(self._record(own))
        return found

    async def compare(self, before: DeadPlace | None, limit: int) -> Compared:
        self._check()
        messages = self._inbox.messages.items()
        places = [(it.dead_lettered_at, id) for id, it in messages if it.dead_lettered_at is not None]
        page = sorted((it for it in places if before is None or it < before), reverse=True)[:limit]
        return Compared(await self.record_rows([id for _, id in page]), page[-1] if len(page) == limit else None)

    def _check(self) -> None:
        if self.down:
            raise DatabaseUnreachable("the incidents in memory are down")

    def _match(self, letter: Letter) -> Match:
        if not letter.readable:
            return Match.UNREADABLE
        if self._is_known(letter):
            return Match.KNOWN
        stored = self._inbox.messages.get(letter.message_id)
        if stored is None:
            return Match.UNKNOWN
        if stored.row.subscription != letter.subscription:
            return Match.ELSEWHERE
        if not _died(stored):
            return Match.ALIVE
        return Match.DEAD if stored.requeues == letter.occurrence - 1 else Match.OTHER_DEATH

    def _is_known(self, letter: Letter) -> bool:
        return any(it.key == letter.key and it.subscription == letter.subscription for it in self.letters.values())

    def _record(self, letter: Letter) -> RecordedIncident:
        id = len(self.letters) + 1
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


def _died(stored: StoredMessage) -> bool:
    return stored.processed_at is None and (stored.dead_lettered_at is not None or stored.row.rejected is not None)


def _of_row(stored: StoredMessage) -> Letter:
    row, verdict = stored.row, stored.row.rejected
    return Letter(
        message_id=row.message_id,
        occurrence=stored.requeues + 1,
        subscription=row.subscription,
        subject=row.subject,
        stream=row.stream,
        stream_seq=row.stream_seq,
        event_type=row.event_type,
        correlation_id=row.correlation_id,
        causation_id=row.causation_id,
        kind=DeadLetterClass.EXHAUSTED if verdict is None else verdict.kind,
        reason="no reason recorded" if verdict is None else verdict.reason,
        attempts=stored.attempts,
        headers=row.headers,
        original=row.body,
        letter_stream="",
        letter_seq=0,
        originals=row.originals,
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
        self,
        run: ClaimedRun,
        state: RunState,
        error: str | None = None,
        delay: timedelta = timedelta(),
        *,
        counts: bool = True,
    ) -> None:
        if stored := self._held(run):
            stored.state, stored.error = state, error
            stored.attempts -= not counts
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
