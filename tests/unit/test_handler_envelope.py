"""What a foreign body of the handler contract leaves out is filled in; what it contradicts is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.envelopes import decode, encode, handler_request, read_request
from relay.domain.errors import MalformedMessage
from relay.domain.identity import Identity
from tests.unit.envelope_support import CORRELATION, EVENT, ID, SUBJECT

quick = settings(max_examples=200, deadline=None)
OTHER = "ffffffff-0000-4000-8000-00000000000f"
CAUSATION = "0193a1b2-0000-7000-8000-000000000001"
STORED = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
LEAST = {"event_type": "vibe_created", "event_version": 2, "payload": {"n": 1.5}}
HEADERS = {
    "Nats-Msg-Id": ID,
    "Relay-Occurred-At": "2025-12-28T23:00:00+01:00",
    "Relay-Correlation-Id": CORRELATION,
    "Relay-Causation-Id": CAUSATION,
}
WHOLE = {
    "message_id": ID,
    "subject": SUBJECT,
    "event_type": "vibe_created",
    "event_version": 2,
    "occurred_at": "2025-12-28T22:00:00.000000Z",
    "correlation_id": CORRELATION,
    "causation_id": CAUSATION,
    "payload": {"n": 1.5},
}


def requested(content: dict[str, Any], headers: dict[str, str] = HEADERS, subject: str = SUBJECT) -> Any:
    return json.loads(handler_request("handler", subject, headers, json.dumps(content).encode(), STORED).body)


def refused(
    content: dict[str, Any], headers: dict[str, str] = HEADERS, subject: str = SUBJECT
) -> MalformedMessage:
    body = json.dumps(content).encode()
    with pytest.raises(MalformedMessage) as raised:
        decode("handler", subject, headers, body)
    with pytest.raises(MalformedMessage):
        handler_request("handler", subject, headers, body, STORED)
    return raised.value


# --- filling ---


def test_what_a_foreign_body_leaves_out_comes_from_headers_and_stream() -> None:
    assert requested(LEAST) == WHOLE


def test_the_time_of_the_stream_stands_in_for_one_that_nobody_gives() -> None:
    assert requested(LEAST, {"Nats-Msg-Id": ID}) == WHOLE | {
        "occurred_at": "2026-01-02T03:04:05.000678Z",
        "correlation_id": None,
        "causation_id": None,
    }


def test_null_says_no_more_than_nothing() -> None:
    nothing = dict.fromkeys(["message_id", "subject", "occurred_at", "correlation_id", "causation_id"])
    assert requested(LEAST | nothing) == WHOLE


def test_a_payload_of_null_is_a_payload() -> None:
    assert requested(LEAST | {"payload": None}) == WHOLE | {"payload": None}


def test_fields_of_a_later_contract_reach_the_handler() -> None:
    assert requested(LEAST | {"actor": {"id": 7}}) == WHOLE | {"actor": {"id": 7}}


def test_a_time_of_the_bodys_own_is_left_as_it_is() -> None:
    theirs = "2025-12-28T20:00:00-02:00"
    assert requested(LEAST | {"occurred_at": theirs})["occurred_at"] == theirs


def test_another_spelling_of_an_id_reaches_the_handler_in_the_usual_one() -> None:
    content = LEAST | {"message_id": ID.upper(), "correlation_id": CORRELATION.upper()}
    assert requested(content, HEADERS | {"Nats-Msg-Id": ID.upper()}) == WHOLE


def test_a_body_that_says_it_all_is_passed_on_byte_by_byte() -> None:
    body = json.dumps(WHOLE | {"payload": 0}).replace("0}", "1.50}").encode()
    assert handler_request("handler", SUBJECT, HEADERS, body, STORED).body is body


def test_a_body_in_utf_16_reaches_the_handler_in_utf_8() -> None:
    body = json.dumps(WHOLE).encode("utf-16")
    assert json.loads(handler_request("handler", SUBJECT, HEADERS, body, STORED).body.decode()) == WHOLE


# --- our own conventions ---


@pytest.mark.parametrize("generation", [0, 3])
@pytest.mark.parametrize("subject", [SUBJECT, "any.topic.at.all", "sea.event.everything.v1"])
def test_our_own_events_pass_replays_and_topics_included(generation: int, subject: str) -> None:
    body, headers = encode("handler", EVENT._replace(subject=subject), generation)
    assert handler_request("handler", subject, headers, body, STORED).body == body
    assert decode("handler", subject, headers, body).generation == generation


def test_an_event_on_its_own_subject_needs_no_header_to_name_it() -> None:
    assert not [name for name in encode("handler", EVENT)[1] if name.startswith("Relay-Event")]


@pytest.mark.parametrize("envelope", ["handler", "raw", "message-envelope", "cloudevents"])
def test_a_request_is_read_without_looking_at_the_wire_again(envelope: str) -> None:
    body, headers = encode(envelope, EVENT)
    request = handler_request(envelope, SUBJECT, headers, body).body
    strange = {"Nats-Msg-Id": headers["Nats-Msg-Id"], "Relay-Event-Type": "other", "Relay-Correlation-Id": "none"}
    assert read_request(SUBJECT, strange, request).event_type == "vibe_created"


# --- contradictions ---


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("message_id", OTHER),
        ("message_id", f"{ID}.2"),
        ("message_id", 7),
        ("message_id", ""),
        ("subject", "vibespro.event.vibe_created.v3"),
        ("subject", SUBJECT.upper()),
        ("subject", ""),
        ("subject", 7),
        ("subject", [SUBJECT]),
        ("event_type", "vibe_deleted"),
        ("event_version", 1),
        ("event_version", "2"),
        ("event_version", 2.0),
        ("correlation_id", OTHER),
        ("correlation_id", "none"),
        ("correlation_id", ""),
        ("causation_id", OTHER),
        ("causation_id", {}),
        ("occurred_at", "yesterday"),
        ("occurred_at", "2025-12-28T22:00:00"),
        ("occurred_at", 0),
    ],
)
def test_a_body_that_contradicts_headers_or_subject_is_refused_by_the_field(field: str, value: object) -> None:
    assert refused(WHOLE | {field: value}).field == field


@pytest.mark.parametrize(
    ("header", "value", "field"),
    [
        ("Relay-Correlation-Id", "s3cret\n", "Relay-Correlation-Id"),
        ("Relay-Causation-Id", "s3cret\n", "Relay-Causation-Id"),
        ("Relay-Event-Type", "s3cret", "event_type"),
        ("Relay-Event-Version", "3", "event_version"),
        ("Relay-Event-Version", "s3cret", "event_version"),
        ("Relay-Occurred-At", "s3cret", "occurred_at"),
        ("Nats-Msg-Id", "s3cret\n", "Nats-Msg-Id"),
    ],
)
def test_a_header_that_contradicts_or_cannot_be_read_is_refused_without_its_value(
    header: str, value: str, field: str
) -> None:
    error = refused(LEAST, HEADERS | {header: value})
    assert (error.field, "s3cret" in str(error)) == (field, False)


@pytest.mark.parametrize("field", ["event_type", "event_version", "payload"])
def test_what_nobody_but_the_body_knows_is_required(field: str) -> None:
    assert refused({name: value for name, value in LEAST.items() if name != field}).field == field


# --- any body at all ---

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=2), scalars, max_size=2)


@quick
@given(
    changes=st.dictionaries(
        st.sampled_from([*WHOLE]), values | st.sampled_from([ID, OTHER, SUBJECT, CORRELATION])
    ),
    left_out=st.sets(st.sampled_from([*WHOLE])),
    headers=st.dictionaries(
        st.sampled_from([*HEADERS, "Relay-Event-Type", "Relay-Event-Version"]),
        st.sampled_from([ID, OTHER, CORRELATION, "2", "vibe_created", "", "x"]),
    ),
)
def test_a_request_is_whole_and_true_or_there_is_none(
    changes: dict[str, Any], left_out: set[str], headers: dict[str, str]
) -> None:
    content = {name: value for name, value in (WHOLE | changes).items() if name not in left_out}
    given_headers = {"Nats-Msg-Id": ID} | headers
    body = json.dumps(content).encode()
    try:
        event = decode("handler", SUBJECT, given_headers, body)
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            handler_request("handler", SUBJECT, given_headers, body, STORED)
        return
    request = json.loads(handler_request("handler", SUBJECT, given_headers, body, STORED).body)
    assert request.keys() >= WHOLE.keys()
    assert (Identity.of(request["message_id"]).uuid, request["subject"]) == (event.message_id, SUBJECT)
    assert request["message_id"] == given_headers["Nats-Msg-Id"]
    assert (request["event_type"], request["event_version"]) == ("vibe_created", 2)
    assert request["occurred_at"] is not None
    assert request["payload"] == content["payload"]
    for name, header in (("correlation_id", "Relay-Correlation-Id"), ("causation_id", "Relay-Causation-Id")):
        assert request[name] == (given_headers.get(header) or content.get(name))
