"""Ids as text and as UUIDs: what is read, what is refused, and what must never change."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.domain.errors import MalformedMessage
from relay.domain.identity import Identity, NatsMsgId, read_id, read_optional_id, stand_in_id

quick = settings(max_examples=100, deadline=None)

ID = UUID("0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
TEXT = "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"

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


@pytest.mark.parametrize("text", [TEXT, TEXT.upper(), "{" + TEXT + "}", "urn:uuid:" + TEXT, TEXT.replace("-", "")])
def test_a_uuid_of_any_form_stands_for_itself(text: str) -> None:
    assert Identity.of(text) == (text, ID, False)
    assert Identity.of(text).canonical == (text.lower() == TEXT)
    assert read_id(text, "message_id") == read_optional_id(text, "message_id") == ID


@pytest.mark.parametrize("value", ["", "evt_1", "\ud800", TEXT[:-1], 7, ID.bytes, [TEXT], {}])
def test_another_value_is_no_id_that_we_read(value: object) -> None:
    for read in (read_id, read_optional_id):
        with pytest.raises(MalformedMessage) as raised:
            read(value, "message_id")
        assert raised.value.field == "message_id"


def test_only_an_id_that_may_be_missing_may_be_missing() -> None:
    assert read_optional_id(None, "causation_id") is None
    with pytest.raises(MalformedMessage):
        read_id(None, "message_id")


# --- Nats-Msg-Id ---


def test_the_message_id_is_the_id_of_the_event() -> None:
    assert NatsMsgId(ID).value == TEXT
    assert NatsMsgId.parse(TEXT) == NatsMsgId(ID, 0)


def test_a_replay_adds_its_generation_and_keeps_the_id() -> None:
    assert NatsMsgId(ID, 3).value == TEXT + ".3"
    assert NatsMsgId.parse(TEXT + ".3") == NatsMsgId(ID, 3)


def test_a_message_id_in_capitals_is_the_same_id() -> None:
    assert NatsMsgId.parse(TEXT.upper()) == NatsMsgId(ID)


@quick
@given(st.uuids(), st.integers(min_value=0, max_value=999_999_999))
def test_every_message_id_is_read_back(event_id: UUID, generation: int) -> None:
    identity = NatsMsgId(event_id, generation)
    assert NatsMsgId.parse(identity.value) == identity


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "1", TEXT.replace("-", ""), "{" + TEXT + "}", "urn:uuid:" + TEXT, TEXT + " ", " " + TEXT,
        TEXT + "\n", TEXT[:-1], TEXT + "0", TEXT[:-1] + "g", TEXT + ".", TEXT + ".0", TEXT + ".01", TEXT + ".-1",
        TEXT + ".x", TEXT + ".1.2", TEXT + ".٣", TEXT + "." + "9" * 5_000, TEXT[:-1] + "٣", "." + TEXT,
        "0193a1b2c3d4-7e5f-8a9b-0c1d-2e3f4a5b", "x" * 100_000,
    ],
)  # fmt: skip
def test_a_text_that_is_no_event_id_makes_a_malformed_message(text: str) -> None:
    with pytest.raises(MalformedMessage) as raised:
        NatsMsgId.parse(text)
    assert raised.value.field == "Nats-Msg-Id"
    assert len(str(raised.value)) < 500


def test_a_message_without_an_id_gets_one_of_its_place_that_never_changes() -> None:
    assert stand_in_id("SEA_EVENTS", 7) == UUID("0354f0e1-b653-59e7-90a8-527e36e7776a")
    assert len({stand_in_id("SEA_EVENTS", 7), stand_in_id("SEA_EVENTS", 8), stand_in_id("VIBES", 7)}) == 3
