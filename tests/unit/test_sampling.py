"""The sample that `make test` runs has each value of each column, and is the same every time."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tests.sampling import marked, sample

CASES = list(product(range(9), "kpl", ("http", "python")))


def test_each_value_occurs_and_none_much_more_often_than_another() -> None:
    chosen = sample(CASES)
    assert len(chosen) == 9
    for column, expected in ((1, 3), (2, 4)):
        counts = [sum(case[column] == value for case in chosen) for value in {case[column] for case in CASES}]
        assert min(counts) >= expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), unique=True))
def test_no_value_is_left_out(cases: list[tuple[int, int]]) -> None:
    assert {it for case in sample(cases) for it in enumerate(case)} == {
        it for case in cases for it in enumerate(case)
    }


def test_the_others_wait_for_make_soak() -> None:
    assert sum(1 for param in marked(CASES) if param.marks) == len(CASES) - 9  # type: ignore[attr-defined]
    assert [param.values for param in marked(CASES, whole=True)][:1] == [(CASES[0],)]  # type: ignore[attr-defined]
