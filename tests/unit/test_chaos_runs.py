"""Promise 12: runs of one cron job do not overlap without a cause, and what an operator asks for is done."""

from __future__ import annotations

from chaos.history import Fault, Operated, Ran
from chaos.judgement import Judgement
from tests.unit.chaos_support import BEGIN, good_run, judged


def runs(*ran: Ran, faults: tuple[Fault, ...] = (), asked: float | None = None) -> Judgement:
    evidence = good_run()
    evidence.ran, evidence.faults = list(ran), list(faults)
    evidence.operated = [] if asked is None else [Operated(0, "run", ["job"], BEGIN + asked)]
    return judged(evidence)[12]


def ran(began: float, ended: float, job: str = "job", *, done: bool = True) -> Ran:
    return Ran(job, BEGIN + began, BEGIN + ended, done)


def test_runs_one_after_the_other_and_of_different_jobs_at_once_are_as_they_should_be() -> None:
    judgement = runs(ran(10, 21), ran(21, 22), ran(12, 20, "other"), ran(23, 24, done=False))
    assert judgement.kept
    assert judgement.figures == {"runs of jobs": 4, "cancelled": 1, "asked for": 0}


def test_two_runs_at_once_are_a_violation_that_names_the_job() -> None:
    judgement = runs(ran(30, 31), ran(10, 21), ran(18, 22))
    assert judgement.violations == ("job job: two runs at once for 3.0 s",)


def test_a_run_within_a_longer_one_is_found_behind_a_short_one() -> None:
    assert runs(ran(10, 30), ran(11, 12), ran(13, 14)).total == 2


def test_a_worker_that_stood_still_could_not_cancel_its_run() -> None:
    def during(kind: str, began: float, ended: float) -> Judgement:
        fault = Fault(1, kind, "worker-1", BEGIN + began, BEGIN + ended)
        return runs(ran(10, 21), ran(18, 22), faults=(fault,))

    assert during("worker-freeze", 11, 20).kept
    assert not during("worker-freeze", 19, 20).kept
    assert not during("worker-freeze", 5, 9).kept
    assert not during("worker-kill", 11, 20).kept


def test_a_request_is_answered_by_a_run_to_its_end_after_it() -> None:
    assert runs(ran(11, 12), asked=10).kept
    assert runs(ran(9, 11), asked=10).kept
    for missed in ([], [ran(8, 9)], [ran(11, 12, done=False)], [ran(11, 12, "other")]):
        judgement = runs(*missed, asked=10)
        assert judgement.violations == (f"job job did not run, though asked to at {BEGIN + 10:.1f}",)
