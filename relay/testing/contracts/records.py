"""The contracts of the records of incidents and of the runs of cron jobs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from uuid import UUID, uuid4

from relay.domain.incidents import Letter
from relay.domain.policies import DeadLetterClass
from relay.domain.schedule import CLAIM, ClaimedRun, RunState, WaitingRun
from relay.ports import IncidentRecords, Runs

_HOUR: Final = timedelta(hours=1)
_NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


class IncidentsBench(Protocol):
    """Records without an incident."""

    @property
    def incidents(self) -> IncidentRecords:
        """The adapter."""

    async def receive(self, body: bytes) -> UUID:
        """Put a message into the inbox of the context; returns its id."""

    async def original_of(self, id: int) -> bytes | None:
        """Return the body that is kept with an incident."""


class IncidentsContract:
    """Needs the fixture ``bench``: an `IncidentsBench`."""

    async def test_a_letter_is_recorded_once_for_each_death(self, bench: IncidentsBench) -> None:
        letter = _letter(uuid4())
        again = replace(letter, occurrence=2, reason="again")
        [first] = await bench.incidents.record([letter, letter])
        [second] = await bench.incidents.record([letter, again])
        assert await bench.incidents.record([again, letter]) == []
        assert first.id != second.id
        assert (first.message_id, first.reason, second.reason) == (letter.message_id, "no such vibe", "again")
        assert (first.kind, first.attempts, first.event_type) == ("deterministic", 3, "vibe_created")

    async def test_an_incident_is_told_by_the_texts_of_ids_that_are_no_uuids(self, bench: IncidentsBench) -> None:
        texts = {"id": "evt_1", "correlation_id": "req_1"}
        letter = replace(_letter(uuid4()), correlation_id=uuid4(), causation_id=uuid4(), originals=texts)
        [found] = await bench.incidents.record([letter])
        assert (found.message_id, found.correlation_id) == ("evt_1", "req_1")
        assert found.causation_id == letter.causation_id

    async def test_an_original_that_did_not_fit_comes_from_the_inbox(self, bench: IncidentsBench) -> None:
        id = await bench.receive(b"of the inbox")
        letters = [_letter(id), replace(_letter(id), occurrence=2, original=b"own"), _letter(uuid4())]
        recorded = await bench.incidents.record(letters)
        assert [await bench.original_of(it.id) for it in recorded] == [b"of the inbox", b"own", None]


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


def _letter(id: UUID) -> Letter:
    return Letter(
        message_id=id,
        occurrence=1,
        subscription="from_up",
        subject="up.event.vibe_created.v1",
        stream="UP",
        stream_seq=1,
        event_type="vibe_created",
        correlation_id=None,
        causation_id=None,
        kind=DeadLetterClass.DETERMINISTIC,
        reason="no such vibe",
        attempts=3,
        headers={},
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
