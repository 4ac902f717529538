"""Dead letters on the wire: their ids, which messages are letters, and reading them, whoever sent them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay.domain.envelopes import LETTER
from relay.domain.identity import Identity, stand_in_id
from relay.domain.incidents import encode_original
from relay.domain.letters import Match, another_id, is_letter, is_same_letter, letter_id, read_letter
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
    assert not letter.readable
    assert letter.unconfirmed(Match.UNREADABLE).kind is DeadLetterClass.UNCONFIRMED
    assert letter.original == body
    assert letter.event_type is None
    assert "cannot be read" in letter.reason


def test_text_that_postgresql_would_refuse_is_made_harmless() -> None:
    body = fields(reason="a\x00b\ud800c\x1b[2J", headers={"X\x00": "\ud800", "n": 5}, subscription="s\x00")
    letter = read_letter("s", body, "SEA_DLQ", 7)
    assert (letter.reason, letter.subscription) == ("a b c [2J", "s ")
    assert letter.headers == {"X ": " ", "n": "5"}
    assert len(read_letter("s", fields(reason="x" * 9_999), "SEA_DLQ", 7).reason) == 2_000


# --- ids ---


def test_the_id_of_a_letter_is_the_same_for_all_releases() -> None:
    assert str(letter_id("sea", "from_up", UUID(int=7), 1)) == "9abfda4b-e69a-581b-8f7d-6f5d30a2a201"


def test_each_death_has_an_id_that_is_no_id_of_a_message() -> None:
    row = uuid4()
    deaths = [("sea", "a", row, 1), ("sea", "a", row, 2), ("sea", "b", row, 1), ("air", "a", row, 1)]
    ids = {letter_id(*death) for death in deaths}
    ids |= {another_id(letter_id("sea", "a", row, 1), seq) for seq in (1, 2)}
    assert len(ids) == 6
    assert ids.isdisjoint({row, Identity.of(f"sea/a/{row}/1").uuid, stand_in_id("SEA_DLQ", 1)})


def test_what_nothing_confirms_has_a_key_of_its_own_place() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    places = [("SEA_DLQ", 7, None), ("SEA_DLQ", 8, None), ("AIR_DLQ", 7, None), ("SEA_DLQ", 7, now)]
    letters = [read_letter("s", fields(), *place).unconfirmed(Match.ALIVE) for place in places]
    keys = {letter.message_id for letter in letters}
    assert len(keys) == len(places)
    assert keys.isdisjoint({ID, stand_in_id("SEA_DLQ", 7)})
    assert {letter.originals["id"] for letter in letters} == {str(ID)}
    assert letters[0].reason.startswith("unconfirmed: the message has not died; the letter says: why")


# --- which messages are letters ---

SHAPE = {"message_id": "x", "original_subject": "a", "reason": "why", "attempts": 1}


@pytest.mark.parametrize(
    ("subject", "headers", "body"),
    [
        ("sea.dlq.a", {}, b""),
        ("whoever.dlq.sea.dlq.a.b", {}, b""),
        ("a.b", {LETTER: "sea"}, b""),
        ("a.b", {LETTER.lower(): ""}, b"{}"),
        ("a.b", {}, json.dumps(SHAPE).encode()),
        ("a.b", {}, json.dumps({"payload": SHAPE}).encode()),
        ("a.b", {}, json.dumps({"data": SHAPE, "specversion": "1.0"}).encode()),
    ],
)
def test_what_is_a_letter(subject: str, headers: dict[str, str], body: bytes) -> None:
    assert is_letter(subject, headers, body)


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("sea.event.dlq.v1", b"{}"),
        ("sea.dlq", b"{}"),
        ("sea.dlqs.a", b"{}"),
        ("dlq.a.b", b"{}"),
        ("a.b", json.dumps({**SHAPE, "reason": 1} | {"payload": []}).encode()[:-9]),
        ("a.b", json.dumps([SHAPE]).encode()),
        ("a.b", json.dumps({"original_subject": "a", "reason": "b"}).encode()),
        ("a.b", b'"original_subject"' + b"[" * 100_000),
    ],
)
def test_what_is_no_letter(subject: str, body: bytes) -> None:
    assert not is_letter(subject, {"Nats-Msg-Id": "1"}, body)


def test_a_letter_that_is_made_again_is_the_same_wherever_its_message_came_again() -> None:
    ours = fields(stream="A", stream_seq=1)
    assert is_same_letter(ours, ours)
    assert is_same_letter(ours, fields(stream="B", stream_seq=2))
    for other in (b"", b"[]", b"[" * 100_000, fields(reason="other"), fields(original="x"), fields(occurrence=4)):
        assert not is_same_letter(ours, other)
