"""Ids as text and as UUIDs: what is read, what is refused, and what must never change."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.domain.errors import InvalidKey, MalformedMessage
from relay.domain.identity import (
    Identity,
    NatsMsgId,
    check_id,
    generated,
    identified,
    read_id,
    read_optional_id,
    stand_in_id,
)

quick = settings(max_examples=100, deadline=None)

ID = UUID("0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
TEXT = "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"

OURS = Identity(TEXT, ID, derived=False)

# --- any text ---


@pytest.mark.parametrize(
    ("text", "uuid"),
    [
        ("evt_01HQGX8K9JNPQR5MWTVYZ3F4BC", "e3f1b49b-e728-5172-8293-a476a491fe71"),
        ("", "e9ad1ca3-1a06-5d4d-89e3-dc46c3f4e1ed"),
    ],
)
def test_a_text_that_is_no_uuid_has_one_that_never_changes(text: str, uuid: str) -> None:
    assert Identity.of(text) == (text, UUID(uuid), True)


@quick
@given(st.text())
@example("\ud800")
@example("SEA_EVENTS/7")
def test_each_text_has_an_identity_which_keeps_it(text: str) -> None:
    identity = Identity.of(text)
    assert identity == Identity.of(text)
    assert identity.text == text
    assert identity.uuid not in (Identity.of(text + "x").uuid, stand_in_id("SEA_EVENTS", 7))


@pytest.mark.parametrize("text", [TEXT, TEXT.upper()])
def test_a_uuid_as_usually_written_stands_for_itself(text: str) -> None:
    identity = Identity.of(text)
    assert identity == (text, ID, False)
    assert (identity.shown, identity.value) == (TEXT, ID)
    assert read_id(text, "message_id") == read_optional_id(text, "message_id") == check_id(text, "id") == identity


@pytest.mark.parametrize("text", ["{" + TEXT + "}", "urn:uuid:" + TEXT, TEXT.replace("-", ""), "evt_1", "order.7"])
def test_any_other_text_stands_for_a_uuid_of_its_own(text: str) -> None:
    identity = Identity.of(text)
    assert (identity.derived, identity.shown, identity.value) == (True, text, text)
    assert identity.uuid != ID


@quick
@given(
    st.text(st.characters(categories=["L", "N", "P", "S"], exclude_characters="\ufffd"), min_size=1, max_size=50)
)
@example("a" * 200)
@example("ä" * 100)
@example("evt 1")
@example("-")
def test_any_printable_text_is_an_id(text: str) -> None:
    for read in (read_id, read_optional_id, check_id):
        assert read(text, "message_id") == Identity.of(text)


NO_IDS = [
    *("", " ", " evt_1", "evt_1 ", "\ud800", "a\x00b", "a\nb", "a\x7f", "a\x9fb", "a\u2028b", "\u202ea", "\ufffd"),
    *("a" * 201, "ä" * 101, "x" * 10_240),
]


@pytest.mark.parametrize("value", [*NO_IDS, 7, ID.bytes, [TEXT], {}])
def test_another_value_is_no_id(value: object) -> None:
    for read in (read_id, read_optional_id, check_id):
        with pytest.raises((MalformedMessage, InvalidKey)) as raised:
            read(value, "message_id")
        assert raised.value.field == "message_id"
        assert len(str(raised.value)) < 200


def test_only_an_id_that_may_be_missing_may_be_missing() -> None:
    assert read_optional_id(None, "causation_id") is None
    with pytest.raises(MalformedMessage):
        read_id(None, "message_id")


def test_the_texts_of_three_ids_are_kept_beside_their_uuids() -> None:
    ids, originals = identified("evt_1", TEXT.upper(), "req_1")
    assert ids == [Identity.of("evt_1").uuid, ID, Identity.of("req_1").uuid]
    assert originals == {"id": "evt_1", "causation_id": "req_1"}
    assert identified(ID, None, ID) == ([ID, None, ID], {})
    with pytest.raises(InvalidKey) as raised:
        identified(ID, "", None)
    assert raised.value.field == "correlation_id"


# --- Nats-Msg-Id ---


def sent(text: str, **others: str) -> NatsMsgId | None:
    names = {"row": "Relay-Event-Id", "generation": "Relay-Generation"}
    return NatsMsgId.read({"Nats-Msg-Id": text} | {names[name]: value for name, value in others.items()})


def test_the_message_id_is_the_id_of_the_event() -> None:
    assert generated(TEXT, 0) == TEXT
    assert sent(TEXT) == NatsMsgId(OURS, 0, ID)


def test_a_replay_adds_its_generation_and_keeps_the_id() -> None:
    assert generated(TEXT, 3) == TEXT + ".3"
    assert sent(TEXT + ".3") == NatsMsgId(OURS, 3, ID)


def test_a_message_id_in_capitals_is_the_same_id() -> None:
    assert sent(TEXT.upper()) == NatsMsgId(Identity(TEXT.upper(), ID, derived=False), 0, ID)


def test_a_message_without_an_id_says_nothing() -> None:
    assert NatsMsgId.read({"Relay-Event-Id": TEXT}) is None


@quick
@given(st.uuids(), st.integers(min_value=0, max_value=999_999_999))
def test_every_message_id_is_read_back(event_id: UUID, generation: int) -> None:
    assert sent(generated(str(event_id), generation)) == NatsMsgId(
        Identity.of(str(event_id)), generation, event_id
    )


@pytest.mark.parametrize("text", ["evt_1", "order.7", TEXT + ".7", "sha256:ab.1", TEXT.replace("-", "")])
@pytest.mark.parametrize("generation", [0, 3])
def test_a_text_of_ours_is_read_back_with_its_row(text: str, generation: int) -> None:
    """The headers beside the id tell the row and the generation: nobody takes the text apart."""
    more = {"generation": str(generation)} if generation else {}
    assert sent(generated(text, generation), row=TEXT, **more) == NatsMsgId(Identity.of(text), generation, ID)


@pytest.mark.parametrize(
    "text",
    [
        *("x", "1", TEXT.replace("-", ""), "{" + TEXT + "}", "urn:uuid:" + TEXT, TEXT[:-1], TEXT + "0"),
        *(TEXT + ".", TEXT + ".0", TEXT + ".01", TEXT + ".-1", TEXT + ".x", TEXT + ".1.2", TEXT + ".٣", "order.7"),
        *(TEXT[:-1] + "٣", "." + TEXT, "0193a1b2c3d4-7e5f-8a9b-0c1d-2e3f4a5b"),
    ],
)
@pytest.mark.parametrize("others", [{}, {"generation": "7"}, {"row": "no uuid", "generation": "7"}])
def test_the_id_of_another_program_is_never_taken_apart(text: str, others: dict[str, str]) -> None:
    assert sent(text, **others) == NatsMsgId(Identity.of(text), 0, None)


@pytest.mark.parametrize("text", [*NO_IDS, TEXT + " ", TEXT + "\n", TEXT + "." + "9" * 5_000])
@pytest.mark.parametrize("others", [{}, {"row": TEXT, "generation": "1"}])
def test_a_text_that_is_no_id_makes_a_malformed_message(text: str, others: dict[str, str]) -> None:
    with pytest.raises(MalformedMessage) as raised:
        sent(text, **others)
    assert raised.value.field == "Nats-Msg-Id"
    assert len(str(raised.value)) < 200


def test_a_message_without_an_id_gets_one_of_its_place_that_never_changes() -> None:
    assert stand_in_id("SEA_EVENTS", 7) == UUID("0354f0e1-b653-59e7-90a8-527e36e7776a")
    assert len({stand_in_id("SEA_EVENTS", 7), stand_in_id("SEA_EVENTS", 8), stand_in_id("VIBES", 7)}) == 3
