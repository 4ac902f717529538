"""Promise 8: how recovery and standstills are read from the samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.evidence import Evidence
from chaos.history import Operation, Outcome, Plan, Produced, Sample, Source
from chaos.judgement import Judgement
from chaos.recovery import percentile, recovered, recoveries, standstill
from tests.unit.chaos_support import BEGIN, busy, fault


def run(*faults: float, seconds: int = 200) -> Evidence:
    """Steady work with a fault of three seconds at each of the given times."""
    made = [fault(number, BEGIN + began) for number, began in enumerate(faults)]
    return Evidence(faults=made, samples=busy(BEGIN, seconds))


def halt(evidence: Evidence, first: int, last: int, *names: str) -> None:
    """These counts do not grow from one sample to another."""
    for index in range(first, last):
        held = {name: getattr(evidence.samples[first], name) for name in names or ("published", "handled")}
        evidence.samples[index] = replace(evidence.samples[index], **held)


def seconds(evidence: Evidence) -> list[float | None]:
    return [found.seconds for found in recoveries(evidence)]


def judge(evidence: Evidence, liveness: bool = False) -> Judgement:
    return recovered(evidence, liveness)


def test_recovery_is_the_time_from_the_end_of_a_fault_to_the_next_growth() -> None:
    evidence = run(10)
    halt(evidence, 10, 20)
    assert seconds(evidence) == [7.0]


@pytest.mark.parametrize("side", ["published", "handled"])
def test_both_sides_must_move_again(side: str) -> None:
    evidence = run(10)
    halt(evidence, 10, 20, side)
    assert seconds(evidence) == [7.0]


def test_a_side_with_nothing_to_do_has_recovered() -> None:
    evidence = run(10)
    evidence.samples[14] = replace(evidence.samples[14], outbox=0, inbox=0)
    halt(evidence, 10, 30)
    assert seconds(evidence) == [1.0]


def test_counts_that_cannot_be_read_are_no_recovery() -> None:
    evidence = run(10)
    blind = [Sample(sample.at, sample.committed, None, None, None, None) for sample in evidence.samples]
    evidence.samples[10:20] = blind[10:20]
    assert seconds(evidence) == [8.0]


def test_messages_that_are_refused_for_ever_are_no_backlog() -> None:
    evidence = run(10)
    never = [Produced(f"e{number}", Source.HTTP, "key", Plan.NEVER) for number in range(40)]
    halt(evidence, 10, 200)
    evidence.samples[:] = [replace(sample, outbox=0) for sample in evidence.samples]
    assert judge(evidence).total > 0
    evidence.operations.append(Operation(0, "batch", Outcome.OK, never, BEGIN))
    assert judge(evidence).kept


def test_republished_events_make_the_count_fall_and_then_grow() -> None:
    evidence = run(10)
    fallen = [replace(sample, published=(sample.published or 0) - 1000) for sample in evidence.samples]
    evidence.samples[16:] = fallen[16:]
    halt(evidence, 10, 16)
    assert seconds(evidence) == [4.0]


def test_of_two_faults_at_once_the_time_after_the_last_counts() -> None:
    evidence = run(10, 12)
    halt(evidence, 10, 20)
    assert seconds(evidence) == [5.0, 5.0]


def test_a_system_that_moves_while_another_fault_is_under_way_has_recovered() -> None:
    evidence = run(10, 15)
    halt(evidence, 10, 17)
    assert seconds(evidence) == [2.0, 1.0]


def test_a_recovery_that_other_faults_interrupt_begins_anew_and_counts_its_longest_peace() -> None:
    evidence = run(10, 20, 25)
    halt(evidence, 10, 33)
    assert seconds(evidence) == [7.0, 5.0, 5.0]


def test_a_subscription_that_nobody_fetches_for_stands_still_beside_others_that_move() -> None:
    evidence = run(*range(10, 190, 6))
    for index, sample in enumerate(evidence.samples):
        stuck = min(index, 40) if index < 70 else index
        delivered = {"http": index, "python": stuck, "ordered": index, "slow": index}
        pending = dict.fromkeys(delivered, 5)
        evidence.samples[index] = replace(sample, delivered=delivered, pending=pending)
    assert standstill(evidence) == 30.0
    assert judge(evidence).violations == (
        "fetching for python stood still for 30.0 s, 15.0 s of it outside of faults",
    )
    for index, sample in enumerate(evidence.samples):
        evidence.samples[index] = replace(sample, pending={**(sample.pending or {}), "python": 0})
    assert judge(evidence).kept


def test_a_system_that_never_recovers_counts_to_the_end_of_the_samples() -> None:
    evidence = run(10)
    halt(evidence, 10, 200)
    assert seconds(evidence) == [186.0]


def test_recovery_is_kept_up_to_its_limits() -> None:
    evidence = run(*range(10, 190, 20))
    assert judge(evidence).kept
    halt(evidence, 10, 20)
    assert judge(evidence).kept


def test_one_slow_recovery_in_ten_is_allowed_and_two_are_not() -> None:
    evidence = run(*range(10, 400, 40), seconds=420)
    halt(evidence, 10, 40)
    assert len(evidence.faults) == 10
    assert judge(evidence).kept
    halt(evidence, 50, 80)
    found = judge(evidence)
    assert "the 90th percentile of the recoveries is 27.0 s, more than 10 s" in found.violations
    assert found.total == 3


def test_of_a_hundred_recoveries_one_may_be_slow() -> None:
    evidence = run(*range(10, 2010, 20), seconds=2040)
    assert len(evidence.faults) == 100
    halt(evidence, 10, 27)
    assert judge(evidence).kept
    halt(evidence, 50, 67)
    assert judge(evidence).violations[0] == "the 99th percentile of the recoveries is 14.0 s, more than 10 s"


def test_a_recovery_of_more_than_half_a_minute_is_named() -> None:
    evidence = run(*range(10, 1000, 80), seconds=1100)
    halt(evidence, 10, 80)
    assert judge(evidence).violations[-1] == "fault 0 (kill worker of worker-1): 67.0 s to recover"


def test_faults_none_of_which_could_be_measured_prove_nothing() -> None:
    evidence = run(10, 10)
    del evidence.samples[12:]
    assert not judge(evidence).kept


def test_a_standstill_counts_while_work_waits_on_either_side() -> None:
    evidence = run()
    halt(evidence, 50, 90, "handled")
    assert standstill(evidence) == 40.0
    evidence.samples[70] = replace(evidence.samples[70], inbox=0)
    assert standstill(evidence) == 20.0


def test_liveness_asks_for_no_recovery_but_for_progress_every_minute() -> None:
    evidence = run(10, 10)
    halt(evidence, 50, 110)
    assert judge(evidence, liveness=True).kept
    halt(evidence, 50, 111)
    assert judge(evidence, liveness=True).violations == (
        "nothing moved for 61.0 s while work waited, more than 60 s",
    )


def test_a_standstill_at_the_end_counts() -> None:
    evidence = run()
    halt(evidence, 100, 200)
    assert standstill(evidence) == 99.0


def test_a_standstill_in_peace_counts_though_every_fault_was_recovered_from() -> None:
    evidence = run(10)
    halt(evidence, 50, 80, "published")
    assert judge(evidence).kept
    halt(evidence, 50, 82, "published")
    assert judge(evidence).violations == ("publishing stood still for 32.0 s outside of faults while work waited",)


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([5, 1, 4, 2, 3], 0.5) == 3
    assert percentile(list(range(1, 11)), 0.9) == 9
    assert percentile([7], 0.9) == 7
