"""Reading dead letters, whoever sent them, and which incidents may be acted upon."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from relay.domain.errors import IncidentClosed, NotRequeueable, UnreadableMessage
from relay.domain.identity import stand_in_id
from relay.domain.incidents import (
    Candidate,
    IncidentStatus,
    close_refusal,
    encode_original,
    read_letter,
    requeue_refusal,
)
from relay.domain.policies import DeadLetterClass

ID = uuid4()


def fields(**values: Any) -> bytes:
    known = {"message_id": str(ID), "class": "exhausted", "reason": "why", "attempts": 20, "occurrence": 3}
    return json.dumps(known | values).encode()


@pytest.mark.parametrize("original", [b'{"a": "\xc3\xbc"}', b"\xff\x00\xfe", b"", b"\\xff"])
def test_the_original_keeps_every_byte(original: bytes) -> None:
    letter = read_letter("sea.dlq.a", fields(**encode_original(original)), "SEA_DLQ", 7)
    assert letter.original == original


def test_a_letter_of_an_earlier_release_is_the_first_of_its_message() -> None:
    body = json.dumps({"message_id": str(ID), "class": "poison", "reason": "r", "original": "x"}).encode()
    letter = read_letter("sea.dlq.a.b", body, "SEA_DLQ", 7)
    assert (letter.message_id, letter.occurrence, letter.original) == (ID, 1, b"x")
    assert (letter.subject, letter.headers, letter.attempts) == ("sea.dlq.a.b", {}, 0)


def test_an_original_that_did_not_fit_is_not_made_up() -> None:
    assert read_letter("s", fields(original=None), "SEA_DLQ", 7).original is None


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        fields(message_id="no\nbody"),
        fields(message_id=5),
        fields(**{"class": "other"}),
        fields(attempts=2**31),
        fields(attempts=True),
        fields(stream_seq=-1),
        fields(stream_seq=2**63),
        fields(correlation_id="c" * 201),
        fields(original=5),
        fields(original="\ud800"),
        fields(original="%", original_encoding="base64"),
    ],
)
def test_what_is_no_dead_letter_is_an_incident_of_its_own(body: bytes) -> None:
    letter = read_letter("sea.dlq.x", body, "SEA_DLQ", 7)
    assert (letter.message_id, letter.kind) == (stand_in_id("SEA_DLQ", 7), DeadLetterClass.POISON)
    assert letter.original == body
    assert letter.event_type is None
    assert "cannot be read" in letter.reason


def test_text_that_postgresql_would_refuse_is_made_harmless() -> None:
    body = fields(reason="a\x00b\ud800c\x1b[2J", headers={"X\x00": "\ud800", "n": 5}, subscription="s\x00")
    letter = read_letter("s", body, "SEA_DLQ", 7)
    assert (letter.reason, letter.subscription) == ("a b c [2J", "s ")
    assert letter.headers == {"X ": " ", "n": "5"}
    assert len(read_letter("s", fields(reason="x" * 9_999), "SEA_DLQ", 7).reason) == 2_000


def candidate(status: IncidentStatus, *, readable: bool = True, waiting: bool = True) -> Candidate:
    return Candidate(status, readable, waiting)


@pytest.mark.parametrize("status", [IncidentStatus.OPEN, IncidentStatus.DISCARDED, IncidentStatus.RESOLVED])
def test_an_operator_may_think_better_of_it(status: IncidentStatus) -> None:
    assert requeue_refusal(candidate(status)) is None


def test_what_must_not_be_requeued() -> None:
    open_ = IncidentStatus.OPEN
    assert isinstance(requeue_refusal(candidate(IncidentStatus.REQUEUED)), IncidentClosed)
    assert isinstance(requeue_refusal(candidate(open_, readable=False)), UnreadableMessage)
    assert isinstance(requeue_refusal(candidate(open_, waiting=False)), NotRequeueable)


def test_only_an_open_incident_is_closed() -> None:
    assert close_refusal(candidate(IncidentStatus.OPEN, readable=False, waiting=False)) is None
    for status in (IncidentStatus.REQUEUED, IncidentStatus.DISCARDED, IncidentStatus.RESOLVED):
        assert isinstance(close_refusal(candidate(status)), IncidentClosed)
