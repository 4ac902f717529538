"""Subject algebra: which patterns meet, and which contain which."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.topology import (
    RELAY_ADVISORIES,
    ConsumerSpec,
    StreamSpec,
    covers,
    is_pattern,
    subject_pattern,
    subjects_overlap,
)

# A small alphabet makes meetings frequent.
LITERALS = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(".".join)
TOKENS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=0, max_size=3)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    tokens = draw(TOKENS)
    if not tokens or draw(st.booleans()):
        tokens = [*tokens, ">"]
    return ".".join(tokens)


def matches(pattern: str, subject: str) -> bool:
    """The definition, token by token, written without the code under test."""
    wanted, given_ = pattern.split("."), subject.split(".")
    if not wanted:
        return not given_
    if wanted[0] == ">":
        return bool(given_[0])
    if wanted[0] not in ("*", given_[0]):
        return False
    if len(wanted) == 1 or len(given_) == 1:
        return len(wanted) == len(given_)
    return matches(".".join(wanted[1:]), ".".join(given_[1:]))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("sea.event.>", "sea.event.x.v1", True),
        ("sea.event.>", "sea.event", False),
        ("sea.event.>", "sea.dlq.>", False),
        ("sea.*.x", "sea.event.*", True),
        ("sea.*", "sea.event.x", False),
        (">", "a", True),
        ("a.b.>", "a.>", True),
        ("*.b", "a.*", True),
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.>", "*", False),
    ],
)
def test_overlap(a: str, b: str, expected: bool) -> None:
    assert subjects_overlap(a, b) is expected
    assert subjects_overlap(b, a) is expected


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("sea.event.>", "sea.event.x.v1", True),
        ("sea.event.>", "sea.event.>", True),
        ("sea.event.>", "sea.event.*", True),
        ("sea.event.*", "sea.event.>", False),
        ("sea.event.>", "sea.>", False),
        ("sea.event.>", "sea.event", False),
        ("*", "a", True),
        ("a", "*", False),
        (">", ">", True),
        ("a.b", "a", False),
        ("a", "a.b", False),
    ],
)
def test_covers(pattern: str, subject: str, expected: bool) -> None:
    assert covers(pattern, subject) is expected


@given(patterns(), LITERALS)
def test_covering_a_plain_subject_is_matching_it(pattern: str, subject: str) -> None:
    assert covers(pattern, subject) == matches(pattern, subject)
    assert subjects_overlap(pattern, subject) == matches(pattern, subject)


@given(patterns(), patterns(), LITERALS)
def test_overlap_and_cover_agree_with_every_subject(a: str, b: str, subject: str) -> None:
    if matches(a, subject) and matches(b, subject):
        assert subjects_overlap(a, b)
    if covers(a, b) and matches(b, subject):
        assert matches(a, subject)


@given(patterns(), patterns())
def test_what_covers_also_overlaps(a: str, b: str) -> None:
    assert subjects_overlap(a, b) == subjects_overlap(b, a)
    if covers(a, b):
        assert subjects_overlap(a, b)


@pytest.mark.parametrize("value", ["a", "a.b-c_D.*", "*.>", ">", RELAY_ADVISORIES.subjects[0]])
def test_patterns(value: str) -> None:
    assert is_pattern(value)


@pytest.mark.parametrize("value", ["", ".", "a..b", "a.", "a b", ">.a", "a*", "a.>b", "ä", "a\n", "x" * 256])
def test_not_patterns(value: str) -> None:
    assert not is_pattern(value)


def test_specs_are_values_with_safe_defaults() -> None:
    spec = StreamSpec(name="S", subjects=("s.>",), max_age=None, max_bytes=-1)
    assert (spec.replicas, spec.max_msgs_per_subject) == (1, -1)
    assert spec.duplicate_window == timedelta(seconds=120)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "T"  # type: ignore[misc]
    consumer = ConsumerSpec(
        stream="S",
        durable="d",
        filter_subject="s.>",
        ack_wait=timedelta(seconds=1),
        max_deliver=1,
        max_ack_pending=1,
    )
    assert {consumer: 1}[dataclasses.replace(consumer)] == 1


def test_given_up_messages_are_kept_for_a_week() -> None:
    assert RELAY_ADVISORIES.max_age == timedelta(days=7)
    assert covers(RELAY_ADVISORIES.subjects[0], "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.SEA_EVENTS.worker")


@given(patterns(), LITERALS)
def test_a_regular_expression_of_a_pattern_matches_what_the_pattern_covers(pattern: str, subject: str) -> None:
    assert bool(re.search(subject_pattern(pattern), subject)) == covers(pattern, subject)


def test_a_regular_expression_takes_everything_else_literally() -> None:
    assert re.search(subject_pattern("a.b(c)"), "a.b(c)")
    assert not re.search(subject_pattern("a.b"), "aXb")
    assert not re.search(subject_pattern("a.b"), "a.b.c")
