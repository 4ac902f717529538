"""Questions about the times of faults."""

from __future__ import annotations

import pytest

from chaos.history import Fault
from chaos.windows import Windows


def windows(*times: tuple[float, float]) -> Windows:
    return Windows([Fault(number, "kind", "target", *time) for number, time in enumerate(times)])


#: Two that overlap, one that begins as they end, and one for itself.
SOME = windows((10, 20), (15, 25), (25, 30), (50, 60))


@pytest.mark.parametrize(("at", "count"), [(5, 0), (10, 1), (17, 2), (22, 1), (40, 0), (55, 1), (61, 0)])
def test_how_many_are_under_way(at: float, count: int) -> None:
    assert SOME.active(at) == count


@pytest.mark.parametrize(
    ("first", "last", "numbers"), [(0, 9, []), (0, 12, [0]), (16, 18, [0, 1]), (31, 49, []), (0, 99, [0, 1, 2, 3])]
)
def test_which_meet_a_time(first: float, last: float, numbers: list[int]) -> None:
    assert [fault.number for fault in SOME.within(first, last)] == numbers
    assert SOME.any_within(first, last) is bool(numbers)


@pytest.mark.parametrize(
    ("first", "last", "covered", "longest"),
    [(0, 100, 30, 40), (0, 10, 0, 10), (12, 18, 6, 0), (28, 52, 4, 20), (31, 49, 0, 18), (60, 60, 0, 0)],
)
def test_how_much_of_a_time_they_cover(first: float, last: float, covered: float, longest: float) -> None:
    assert SOME.covered(first, last) == covered
    assert SOME.calm(first, last) == last - first - covered
    assert SOME.longest_calm(first, last) == longest


def test_what_comes_shortly_after_a_fault_may_count_with_it_and_never_twice() -> None:
    assert SOME.covered(0, 100, more=5) == 25 + 15
    assert SOME.covered(32, 40, more=5) == 3
    assert windows((0, 1), (2, 3), (4, 5)).covered(0, 100, more=10) == 15


def test_no_faults_are_no_disturbance() -> None:
    none = windows()
    assert (none.active(1), none.within(0, 9), none.any_within(0, 9)) == (0, [], False)
    assert (none.covered(0, 9), none.longest_calm(0, 9)) == (0, 9)
