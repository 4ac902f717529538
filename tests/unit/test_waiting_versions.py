"""When a message waits for a worker that knows its version, and how workers tell what they know."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.handlers import HandlerRegistry
from consumer.waiting import WaitForVersion
from relay.domain.members import ANY, digest_of, handled_name, handles
from relay.domain.policies import DeadLetterClass, Retry, Unhandled
from relay.ports import ClaimedMessage, InboxRow

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
NAMES = st.builds(
    handled_name, st.just("sea"), st.sampled_from(["a", "b"]), st.text(max_size=9), st.integers(1, 99)
)
VERDICT = Unhandled("no handler for order_changed v2", DeadLetterClass.DETERMINISTIC)


def claim(age: timedelta, subject: str = "vibespro.event.order_changed.v2") -> ClaimedMessage:
    row = InboxRow(
        message_id=uuid4(),
        subject=subject,
        subscription="from_vibespro",
        stream="VIBESPRO_EVENTS",
        stream_seq=1,
        ack_subject="",
        body=b"{}",
        headers={},
        event_type="order_changed",
        event_version=2,
        occurred_at=None,
        partition_key=None,
        correlation_id=None,
        causation_id=None,
    )
    return ClaimedMessage(uuid4(), row, 1, received_at=datetime.now(UTC) - age)


def judged(knows: bool, age: timedelta, unseen: timedelta | None, **about: Any) -> tuple[Any, list[str]]:
    asked: list[str] = []

    async def find(names: list[str]) -> bool:
        asked.extend(names)
        return knows

    waits = WaitForVersion(context="sea", subscription="from_vibespro", knows=find, longest=DAY, unseen=unseen)
    return asyncio.run(waits.judged(claim(age, **about), VERDICT)), asked


@pytest.mark.parametrize(
    ("knows", "age", "unseen", "waits"),
    [
        (True, MINUTE, None, True),
        (True, MINUTE, HOUR, True),
        (True, 2 * DAY, None, False),
        (True, 2 * DAY, HOUR, False),
        (True, 2 * DAY, 3 * DAY, True),
        (False, timedelta(0), None, False),
        (False, MINUTE, HOUR, True),
        (False, 2 * HOUR, HOUR, False),
    ],
)
def test_it_waits_while_a_worker_knows_it_or_as_long_as_is_set(
    knows: bool, age: timedelta, unseen: timedelta | None, waits: bool
) -> None:
    verdict, _ = judged(knows, age, unseen)
    if not waits:
        assert verdict is VERDICT
        return
    assert isinstance(verdict, Retry)
    assert not verdict.counts
    assert verdict.error == f"UNKNOWN_VERSION: {VERDICT.reason}"
    most = timedelta(seconds=5) if knows and age < DAY else timedelta(seconds=30)
    assert timedelta(seconds=0.8) <= verdict.delay <= most


def test_it_is_asked_for_by_its_type_and_by_the_name_of_its_command() -> None:
    assert judged(True, MINUTE, None)[1] == ["sea/from_vibespro order_changed v2"]
    _, asked = judged(True, MINUTE, None, subject="sea.commands.order.change")
    assert asked == ["sea/from_vibespro order.change v2", "sea/from_vibespro order_changed v2"]


@given(st.sets(NAMES, max_size=40), st.sets(NAMES, max_size=10))
def test_a_digest_has_what_it_was_made_of_and_nothing_else(known: set[str], others: set[str]) -> None:
    digest = digest_of(known)
    assert all(handles(digest, it) for it in known)
    assert not any(handles(digest, it) for it in others - known)


@pytest.mark.parametrize("digest", ["", "?", "abc", "====", "ä"])
def test_a_digest_that_nobody_can_read_has_nothing(digest: str) -> None:
    assert not handles(digest, "sea/a b v1")


def test_a_worker_with_very_many_versions_may_handle_any_and_a_beat_stays_small() -> None:
    assert len(digest_of([f"n{it}" for it in range(1_500)])) <= 8_000
    assert digest_of([f"n{it}" for it in range(1_501)]) == ANY
    assert handles(ANY, "sea/a b v1")


def test_the_versions_of_a_module_are_those_for_which_a_function_is_found() -> None:
    registry = HandlerRegistry("tests")

    def made(payload: dict[str, Any]) -> None: ...

    registry.handles("made", version=3)(made)
    registry.upcasts("made", from_version=1)(lambda payload: payload)
    registry.upcasts("made", from_version=2)(lambda payload: payload)
    registry.upcasts("made", from_version=5)(lambda payload: payload)
    assert sorted(registry.versions()) == [("made", 1), ("made", 2), ("made", 3)]
