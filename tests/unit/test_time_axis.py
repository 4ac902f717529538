"""Spans of waiting, working and back-off, and their places on an axis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import pytest

from relay.domain.attempts import Attempt, noted, read_attempts, whole
from relay.domain.claim_tokens import CHANCE_BITS, mark_of, read_token, token_of
from relay.domain.durations import ago, duration
from relay.domain.time_axis import Axis, SpanKind, Stretch, spans

BEGIN = datetime(2026, 1, 31, 3, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def failed(number: int, begin: float, end: float, next_at: float) -> Attempt:
    times = {"began": after(begin), "ended": after(end), "next_at": after(next_at)}
    return Attempt(number=number, outcome="failed", **times)


WAITS, WORKS, OFF, UNKNOWN = SpanKind.WAITING, SpanKind.WORKING, SpanKind.BACK_OFF, SpanKind.UNKNOWN


def drawn(found: list[Stretch]) -> list[tuple[SpanKind, float, float]]:
    return [(it.kind, (it.begin - BEGIN).total_seconds(), (it.end - BEGIN).total_seconds()) for it in found]


@pytest.mark.parametrize(
    ("ended", "attempts", "more", "expected"),
    [
        pytest.param(None, [], {}, [(WAITS, 0, 100)], id="nothing has happened yet"),
        pytest.param(
            5, [Attempt(number=1, outcome="processed", ended=after(5))], {}, [(UNKNOWN, 0, 5)], id="no notes"
        ),
        pytest.param(
            5,
            [Attempt(number=1, outcome="completed", ended=after(5))],
            {"started": after(2)},
            [(WAITS, 0, 2), (WORKS, 2, 5)],
            id="the row says when it was started",
        ),
        pytest.param(
            20,
            [failed(1, 1, 3, 8), Attempt(number=2, outcome="processed", began=after(10), ended=after(20))],
            {},
            [(WAITS, 0, 1), (WORKS, 1, 3), (OFF, 3, 8), (WAITS, 8, 10), (WORKS, 10, 20)],
            id="a failure, and a success",
        ),
        pytest.param(
            None, [failed(1, 1, 3, 200)], {}, [(WAITS, 0, 1), (WORKS, 1, 3), (OFF, 3, 100)], id="backs off now"
        ),
        pytest.param(
            None,
            [failed(1, 1, 3, 50)],
            {},
            [(WAITS, 0, 1), (WORKS, 1, 3), (OFF, 3, 50), (WAITS, 50, 100)],
            id="is due again",
        ),
        pytest.param(
            None,
            [Attempt(number=1, outcome="running", began=after(40))],
            {},
            [(WAITS, 0, 40), (WORKS, 40, 100)],
            id="runs",
        ),
        pytest.param(
            30,
            [Attempt(number=1, outcome="completed", ended=after(30))],
            {"due": after(20), "started": after(25)},
            [(OFF, 0, 20), (WAITS, 20, 25), (WORKS, 25, 30)],
            id="its producer delayed it",
        ),
        pytest.param(
            9,
            [failed(1, -5, 2, 1), Attempt(number=2, outcome="dead", began=after(1), ended=after(9))],
            {},
            [(WORKS, 0, 2), (WORKS, 2, 9)],
            id="clocks that differ make no overlap",
        ),
    ],
)
def test_the_spans_of_a_row(
    ended: float | None, attempts: list[Attempt], more: dict[str, datetime], expected: list[tuple[object, ...]]
) -> None:
    end = None if ended is None else after(ended)
    found = spans(BEGIN, end, attempts, after(100), **more)
    assert drawn(found) == expected
    assert all(one.end <= next_.begin for one, next_ in pairwise(found))
    assert [it.open for it in found] == [ended is None and it is found[-1] for it in found]


def test_bars_lie_on_the_axis_in_order_and_can_all_be_seen() -> None:
    found = [
        Stretch(WAITS, BEGIN, after(0.001)),
        Stretch(WORKS, after(0.001), after(100)),
        Stretch(OFF, after(100), after(100)),
    ]
    axis = Axis.over([BEGIN, after(100)])
    assert axis is not None
    bars = axis.bars(found)
    assert all(it.left >= 0 and it.left + it.width <= 1.0001 and it.width > 0.003 for it in bars)
    assert [it.left for it in bars] == sorted(it.left for it in bars)


@pytest.mark.parametrize("seconds", [0.0005, 0.3, 7, 61, 3_599, 90_000, 10**8])
def test_an_axis_has_few_marks_at_round_numbers(seconds: float) -> None:
    axis = Axis.over([BEGIN, after(seconds)])
    assert axis is not None
    assert len(axis.marks) <= 5
    assert all(0 < part <= 1.0001 for part, _ in axis.marks)


def test_one_moment_makes_no_axis() -> None:
    assert Axis.over([]) is None
    assert Axis.over([BEGIN, BEGIN]) is None


# --- attempts ---


@pytest.mark.parametrize(
    "log",
    [
        None, "text", 3, {}, [None, 1, "x", {}, {"n": "1"}, {"n": None}],
        [{"n": 1, "at": "never", "took": "long", "claim": "x", "round": [], "stack": {}, "error": 7, "next": 1}],
        [{"n": 1, "at": "infinity", "took": 1e300, "claim": "00000000-0000-8000-8000-000000000000"}],
    ],
)  # fmt: skip
def test_whatever_is_written_as_notes_can_be_read(log: object) -> None:
    for it in read_attempts(log):
        assert isinstance(it.number, int)


def test_a_note_is_bounded() -> None:
    error = "x" * 9_000 + "".join(f" (from shop/{'y' * 900}.py:{line} in pay)" for line in range(40))
    assert len(str(noted("failed", error, 1.5, "w" * 900, "r" * 900))) < 2_500


@pytest.mark.parametrize(
    ("known", "about", "told"),
    [
        ([], {"counted": 0}, []),
        ([], {"counted": 1, "ended": BEGIN, "outcome": "processed"}, ["processed"]),
        ([], {"counted": 3}, []),
        ([1], {"counted": 1}, ["failed"]),
        ([1, 3], {"counted": 3}, ["failed", "lost", "failed"]),
        ([1], {"counted": 2}, ["failed", "lost"]),
        ([1], {"counted": 3, "ended": BEGIN, "outcome": "dead"}, ["failed", "lost", "dead"]),
        ([2], {"counted": 1}, ["failed"]),
    ],
)
def test_attempts_that_left_no_note_are_told(known: list[int], about: dict[str, object], told: list[str]) -> None:
    attempts = [Attempt(number=it, outcome="failed") for it in known]
    assert [it.outcome for it in whole(attempts, **about)] == told  # type: ignore[arg-type]


def test_a_token_says_when_and_by_whom_a_row_was_claimed() -> None:
    mark = mark_of("host", 7)
    token = token_of(1_769_828_400_123, mark, (1 << CHANCE_BITS) - 1)
    claimed = read_token(token)
    assert claimed is not None
    assert (claimed.mark, claimed.at.timestamp()) == (mark, 1_769_828_400.123)
    assert mark_of("host", 8) != mark
    assert len({token_of(1, mark, chance) for chance in range(1_000)}) == 1_000


def test_a_token_of_an_earlier_release_says_nothing() -> None:
    assert read_token(uuid4()) is None


# --- durations ---


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (None, "?"),
        *(
            (0, "0 ms"),
            (0.042, "42 ms"),
            (1, "1 s"),
            (1.25, "1.2 s"),
            (45, "45 s"),
            (119, "119 s"),
            (120, "2 min"),
        ),
        *((1_020, "17 min"), (5_400, "90 min"), (9_000, "2.5 h"), (172_800, "2 d"), (1_036_800, "12 d")),
    ],
)
def test_a_duration_is_told_in_one_way(seconds: float | None, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "now"), (59, "59 s ago"), (200, "3 min ago"), (-7_300, "in 2 h")]
)
def test_a_time_is_told_from_now(seconds: float, told: str) -> None:
    assert ago(BEGIN - timedelta(seconds=seconds), BEGIN) == told
