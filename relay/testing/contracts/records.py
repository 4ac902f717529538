"""The contracts of the records of incidents and of the runs of cron jobs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

from relay.domain.incidents import RecordedIncident
from relay.domain.letters import Letter
from relay.domain.policies import DeadLetter, DeadLetterClass
from relay.domain.schedule import CLAIM, ClaimedRun, RunState, WaitingRun
from relay.ports import DeadPlace, InboxRepository, InboxRow, IncidentRecords, Runs

_HOUR: Final = timedelta(hours=1)
_NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


class IncidentsBench(Protocol):
    """Records without an incident, and an inbox."""

    @property
    def incidents(self) -> IncidentRecords:
        """The adapter."""

    @property
    def inbox(self) -> InboxRepository:
        """The inbox of the context."""

    async def requeue(self, message_id: UUID) -> None:
        """Requeue a dead message, as an operator does."""

    async def original_of(self, id: int) -> bytes | None:
        """Return the body that is kept with an incident."""


class IncidentsContract:
    """Needs the fixture ``bench``: an `IncidentsBench`."""

    async def test_a_death_is_recorded_once_and_the_next_one_again(self, bench: IncidentsBench) -> None:
        row = await _dead(bench)
        letter = _letter(row)
        [first] = await bench.incidents.record_letters([letter, letter])
        assert await bench.incidents.record_rows([row.message_id]) == []
        await bench.requeue(row.message_id)
        assert (
            await bench.incidents.record_letters([letter])
            == await bench.incidents.record_rows([row.message_id])
            == []
        )
        await _die(bench, row, "again")
        [second] = await bench.incidents.record_rows([row.message_id])
        assert await bench.incidents.record_letters([letter, replace(letter, occurrence=2, letter_seq=2)]) == []
        assert first.id != second.id
        assert (first.message_id, first.reason, second.reason) == (row.message_id, "no such vibe", "again")
        assert (first.kind, first.attempts, first.event_type) == ("deterministic", 1, "vibe_created")
        assert await bench.original_of(first.id) == b"of the inbox"

    async def test_an_incident_is_told_by_the_texts_of_ids_that_are_no_uuids(self, bench: IncidentsBench) -> None:
        texts = {"id": "evt_1", "correlation_id": "req_1"}
        row = await _dead(bench, correlation_id=uuid4(), causation_id=uuid4(), originals=texts)
        [found] = await bench.incidents.record_letters([_letter(row)])
        assert (found.message_id, found.correlation_id) == ("evt_1", "req_1")
        assert found.causation_id == row.causation_id

    async def test_what_a_letter_says_changes_nothing_in_the_incident_of_its_row(
        self, bench: IncidentsBench
    ) -> None:
        row = await _dead(bench)
        forged = replace(_letter(row), reason="forged", attempts=9, original=b"forged", headers={"forged": "1"})
        [found] = await bench.incidents.record_letters([forged])
        assert (found.reason, found.attempts, await bench.original_of(found.id)) == (
            "no such vibe",
            1,
            b"of the inbox",
        )

    async def test_a_letter_that_no_row_confirms_is_an_incident_of_its_own(self, bench: IncidentsBench) -> None:
        alive = _row()
        await bench.inbox.insert([alive])
        row = await _dead(bench)
        forged = [
            _letter(alive),
            replace(_letter(row), occurrence=2),
            replace(_letter(row), subscription="another"),
            replace(_letter(row), subscription=None),
            _letter(_row()),
            replace(_letter(row), readable=False),
        ]
        forged = [replace(letter, letter_seq=seq) for seq, letter in enumerate(forged, 1)]
        found = await bench.incidents.record_letters(forged)
        assert [it.kind for it in found] == ["unconfirmed"] * len(forged)
        assert await bench.incidents.record_letters(forged) == []
        await _die(bench, alive)
        [real, other] = await bench.incidents.record_rows([alive.message_id, row.message_id])
        assert (real.message_id, other.message_id) == (alive.message_id, row.message_id)
        assert real.kind == other.kind == "deterministic"

    async def test_a_comparison_finds_the_dead_rows_that_have_no_incident(self, bench: IncidentsBench) -> None:
        rows = [await _dead(bench) for _ in range(5)]
        await bench.incidents.record_rows([rows[0].message_id, rows[3].message_id])
        found: list[RecordedIncident] = []
        place: DeadPlace | None = None
        for _ in range(2):
            compared = await bench.incidents.compare(place, 2)
            found += compared.recorded
            place = compared.rest
        last = await bench.incidents.compare(place, 2)
        assert {it.message_id for it in [*found, *last.recorded]} == {rows[it].message_id for it in (1, 2, 4)}
        assert last.rest is None
        assert await bench.incidents.compare(None, 10) == ([], None)


class RunsBench(Protocol):
    """A context without runs."""

    @property
    def runs(self) -> Runs:
        """The adapter."""

    async def open(self, run: WaitingRun) -> None:
        """Open a run, as the leading scheduler does."""

    async def elapse(self, time: timedelta) -> None:
        """Let this time pass for claims and delays: move the clock, or move these times in the rows back."""


class RunsContract:
    """Needs the fixture ``bench``: a `RunsBench`."""

    async def test_of_many_claims_at_once_one_succeeds(self, bench: RunsBench) -> None:
        await bench.open(_run())
        claims = await asyncio.gather(*(bench.runs.claim(_run(), uuid4(), "ann") for _ in range(8)))
        assert [claim.attempt for claim in claims if claim is not None] == [1]

    async def test_a_run_is_free_again_after_its_lease(self, bench: RunsBench) -> None:
        await bench.open(_run())
        first = await _claimed(bench, _run())
        await bench.elapse(_HOUR)
        second = await _claimed(bench, _run())
        assert (second.attempt, second.correlation_id) == (2, first.correlation_id)
        assert not await bench.runs.renew(first)
        await bench.runs.settle(first, RunState.WAITING)
        assert await bench.runs.renew(second)
        assert await bench.runs.claim(_run(), uuid4(), "bob") is None

    async def test_a_renewed_claim_lasts_from_then_on(self, bench: RunsBench) -> None:
        await bench.open(_run())
        claim = await _claimed(bench, _run())
        await bench.elapse(_HOUR)
        assert await bench.runs.renew(claim)
        assert await bench.runs.claim(_run(), uuid4(), "bob") is None
        await bench.elapse(CLAIM)
        assert await bench.runs.claim(_run(), uuid4(), "bob") is not None

    async def test_runs_of_a_job_do_not_overlap_even_when_one_has_lost_its_worker(self, bench: RunsBench) -> None:
        for run in (_run(), _run(1), _run(job="other")):
            await bench.open(run)
        first = await _claimed(bench, _run())
        assert await bench.runs.claim(_run(1), uuid4(), "bob") is None
        await bench.elapse(_HOUR)
        assert await bench.runs.claim(_run(1), uuid4(), "bob") is None
        await _claimed(bench, _run(job="other"))
        await bench.runs.settle(first, RunState.FINISHED)
        await _claimed(bench, _run(1))

    async def test_a_failed_attempt_can_be_followed_by_another_and_an_end_cannot(self, bench: RunsBench) -> None:
        await bench.open(_run())
        for attempt in (1, 2):
            claim = await _claimed(bench, _run())
            assert claim.attempt == attempt
            await bench.runs.settle(claim, RunState.WAITING, "boom", timedelta(seconds=1))
        await bench.runs.settle(await _claimed(bench, _run()), RunState.FAILED, "boom")
        await bench.elapse(_HOUR)
        assert await bench.runs.claim(_run(), uuid4(), "bob") is None
        assert await bench.runs.claim(_run(5), uuid4(), "bob") is None


def _row(**values: Any) -> InboxRow:
    given = {"event_type": "vibe_created", "event_version": 1, **values}
    return InboxRow(uuid4(), "up.event.vibe_created.v1", "from_up", "UP", 1, "reply", b"of the inbox", {}, **given)


async def _dead(bench: IncidentsBench, **values: Any) -> InboxRow:
    """A row that has died."""
    row = _row(**values)
    await bench.inbox.insert([row])
    await _die(bench, row)
    return row


async def _die(bench: IncidentsBench, row: InboxRow, reason: str = "no such vibe") -> None:
    claim = await bench.inbox.claim(row.message_id, _HOUR)
    assert claim is not None
    assert await bench.inbox.reject(claim, DeadLetter(reason, DeadLetterClass.DETERMINISTIC))
    assert await bench.inbox.mark_dead_lettered(claim)


def _letter(row: InboxRow) -> Letter:
    return Letter(
        message_id=row.message_id,
        subscription=row.subscription,
        subject=row.subject,
        kind=DeadLetterClass.DETERMINISTIC,
        reason="no such vibe",
        original=None,
        letter_stream="SEA_DLQ",
        letter_seq=1,
    )


def _run(hours: int = 0, job: str = "nightly") -> WaitingRun:
    return WaitingRun(job, _NOON + hours * _HOUR)


async def _claimed(bench: RunsBench, run: WaitingRun) -> ClaimedRun:
    claim = await bench.runs.claim(run, uuid4(), "ann")
    assert claim is not None, "the run is free"
    return claim
