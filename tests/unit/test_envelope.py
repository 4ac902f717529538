"""The wire form of an event: exact bytes, there and back, and the request its handler gets."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.domain.actor import Actor
from relay.domain.envelopes import Incoming, Outgoing, decode, encode, handler_request
from relay.domain.envelopes.message_envelope import idempotency_key
from relay.domain.identity import Identity
from relay.domain.limits import check_headers
from relay.domain.traceparent import Trace
from tests.unit.envelope_support import (
    CORRELATION,
    ENVELOPE_BODY,
    ENVELOPES,
    EVENT,
    HANDLER_BODY,
    ID,
    KEY,
    SUBJECT,
    received,
    wire,
)

quick = settings(max_examples=60, deadline=None)
every_envelope = pytest.mark.parametrize("envelope", ENVELOPES)


# --- writing ---


@every_envelope
def test_an_event_has_exactly_this_form_on_the_wire(envelope: str) -> None:
    assert encode(envelope, EVENT) == wire(envelope)


def test_the_actor_of_an_event_that_names_none_is_the_system() -> None:
    body = json.loads(encode("message-envelope", EVENT._replace(headers={}))[0])
    assert (body["actor_id"], body["actor_kind"]) == ("system", "SYSTEM")


def test_two_events_that_say_the_same_have_different_idempotency_keys() -> None:
    """A consumer that follows SR-MESSAGE-CONTRACTS §5.2 would skip the second."""
    bodies = [json.loads(encode("message-envelope", EVENT._replace(id=id))[0]) for id in (ID, CORRELATION, ID)]
    assert bodies[0]["idempotency_key"] == bodies[2]["idempotency_key"] != bodies[1]["idempotency_key"]


@every_envelope
def test_a_replay_differs_in_the_headers_about_its_id_only(envelope: str) -> None:
    body, headers = wire(envelope)
    more = {"Relay-Generation": "3"} if envelope == "message-envelope" else {}
    again = {"Nats-Msg-Id": f"{headers['Nats-Msg-Id']}.3"}
    assert encode(envelope, EVENT, generation=3) == (body, headers | again | more)


@every_envelope
def test_an_event_without_order_and_correlation_sends_no_headers_for_them(envelope: str) -> None:
    plain = EVENT._replace(partition_key="", correlation_id=None, headers={})
    assert (
        not {"Relay-Partition-Key", "ce-correlationid", "Relay-Correlation-Id"} & encode(envelope, plain)[1].keys()
    )


IMPOSTORS = {
    "relay-partition-key": "stolen",
    "Relay-Partition-Key": "stolen",
    "Relay-Correlation-Id": "no uuid",
    "Relay-Causation-Id": "no uuid",
    "Relay-Event-Version": "99",
    "CE-CorrelationId": "no uuid",
    "ce-causationid": "no uuid",
    "ce-type": "stolen",
    "Ce-SpecVersion": "0.3",
}


@every_envelope
def test_headers_of_the_caller_never_pass_for_our_own_even_where_we_have_none(envelope: str) -> None:
    plain = EVENT._replace(partition_key="", correlation_id=None, headers=IMPOSTORS)
    body, headers = encode(envelope, plain)
    event = decode(envelope, SUBJECT, headers, body)
    assert (event.event_type, event.event_version, event.partition_key) == ("vibe_created", 2, None)
    assert (event.correlation_id, event.causation_id) == (None, None)


# --- there and back ---

tokens = st.text("ABCXYZabcxyz0189_-", min_size=1, max_size=64)
uuids = st.uuids().map(str)
times = st.datetimes(min_value=datetime(1970, 1, 1)).map(lambda time: f"{time:%Y-%m-%dT%H:%M:%S.%f}Z")  # noqa: DTZ001
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
numbers = st.integers(min_value=-(2**63), max_value=2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
payloads = st.recursive(
    st.none() | st.booleans() | numbers | keys,
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner),
    max_leaves=5,
)
header_maps = st.dictionaries(
    st.sampled_from(["Actor-Id", "traceparent", *IMPOSTORS]),
    st.text('ab% "\\:{}~', max_size=9) | st.just(f"00-{'a' * 32}-{'b' * 16}-01"),
    max_size=4,
)
texts = st.text(
    st.characters(categories=["L", "N", "P", "S"], exclude_characters="\ufffd"), min_size=1, max_size=30
)
ids = uuids | texts
outgoing = st.builds(
    Outgoing, ids, st.just(SUBJECT), tokens, st.integers(1, 10**9 - 1), times, st.none() | ids,
    st.none() | ids, payloads.map(json.dumps), header_maps, keys, uuids, texts,
)  # fmt: skip


@every_envelope
@quick
@given(event=outgoing, generation=st.integers(min_value=0, max_value=10**6))
@example(event=EVENT._replace(id="evt_1", row_id=ID, correlation_id="req 1", causation_id="50%"), generation=2)
def test_what_is_sent_is_what_is_received(envelope: str, event: Outgoing, generation: int) -> None:
    if envelope == "message-envelope":
        event = event._replace(payload=json.dumps({"payload": json.loads(event.payload)}))
    body, headers = encode(envelope, event, generation)
    given = {"id": event.id, "correlation_id": event.correlation_id, "causation_id": event.causation_id}
    found = {name: None if text is None else Identity.of(text) for name, text in given.items()}
    originals = {name: id.text for name, id in found.items() if id is not None and id.derived}
    trace = Trace.parse(event.headers.get("traceparent"))
    expected = Incoming(
        message_id=Identity.of(event.id).uuid,
        generation=generation,
        event_type=event.event_type,
        event_version=event.event_version,
        occurred_at=datetime.fromisoformat(event.occurred_at),
        correlation_id=found["correlation_id"] and found["correlation_id"].uuid,
        causation_id=found["causation_id"] and found["causation_id"].uuid,
        partition_key=event.partition_key or None,
        payload=json.loads(event.payload),
        originals=originals,
        traceparent=trace and trace.value,
    )
    if envelope == "message-envelope":
        key = idempotency_key(event.id, event.payload)
        expected = expected._replace(
            message_id=Identity.of(key).uuid,
            idempotency_key=key,
            originals={**originals, "id": event.id},
            actor=Actor(event.system_actor, "SYSTEM"),
        )
    assert decode(envelope, event.subject, headers, body) == expected


@quick
@given(keys)
@example(" a%20+b\r\nNats-Rollup: all\t")
@example("日本:🎷/é" + "\U0010ffff" * 50)
def test_a_partition_key_of_any_unicode_survives_a_header_that_takes_plain_ascii_only(key: str) -> None:
    body, headers = encode("handler", EVENT._replace(partition_key=key))
    check_headers({"X-Key": headers.get("Relay-Partition-Key", "")})
    assert headers.get("Relay-Partition-Key", "").strip() == headers.get("Relay-Partition-Key", "")
    assert (decode("handler", SUBJECT, headers, body).partition_key or "") == key


# --- what others send ---


def test_a_raw_message_of_a_foreign_producer_is_named_by_its_subject() -> None:
    event = decode("raw", "sea.event.case_opened.v3", {"Nats-Msg-Id": ID}, b"[1]")
    assert (event.event_type, event.event_version, event.payload) == ("case_opened", 3, [1])
    assert (event.occurred_at, event.partition_key) == (None, None)


@pytest.mark.parametrize(
    ("topic", "name"), [("payout.generated", "payout_generated"), (f"{'a' * 60}.{'b' * 60}", f"aaa_{'b' * 60}")]
)
def test_a_raw_message_of_a_topic_is_named_as_the_view_of_microdao_names_it(topic: str, name: str) -> None:
    incoming = decode("raw", topic, {"Nats-Msg-Id": "evt_1"}, b"{}")
    assert (incoming.event_type, incoming.event_version) == (name, 1)


def test_cloud_events_attributes_are_read_in_any_case_and_the_optional_ones_may_be_missing() -> None:
    headers = {"Nats-Msg-Id": ID, "CE-SpecVersion": "1.0", "Ce-Type": "opened"}
    event = decode("cloudevents", "any.subject", headers, b"null")
    assert (event.event_type, event.event_version, event.occurred_at, event.payload) == ("opened", 1, None, None)


def test_a_message_envelope_without_a_version_header_is_version_one_and_unknown_fields_are_ignored() -> None:
    body = json.dumps(json.loads(ENVELOPE_BODY) | {"new": {"field": 1}}).encode()
    assert received("message-envelope", {"Relay-Event-Version": None}, body).event_version == 1


@pytest.mark.parametrize("msg_id", ["another", ID, None])
def test_a_message_envelope_is_known_by_its_key_whatever_names_it_and_shows_its_id(msg_id: str | None) -> None:
    event = received("message-envelope", {"Nats-Msg-Id": msg_id})
    assert (event.message_id, event.idempotency_key) == (Identity.of(KEY).uuid, KEY)
    assert event.originals == {"id": ID}


@pytest.mark.parametrize(
    "text", ["2025-12-28T23:30:00+01:30", "2025-12-28T22:00:00Z", "20251228T120000.000-10:00"]
)
def test_a_time_of_any_zone_is_read_as_utc(text: str) -> None:
    event = received("raw", {"Relay-Occurred-At": text})
    assert event.occurred_at == datetime(2025, 12, 28, 22, tzinfo=UTC)
    assert event.occurred_at.tzinfo is UTC


# --- the request of the handler contract (SDS-047 §12) ---


@every_envelope
def test_the_handler_gets_the_same_request_whatever_the_envelope(envelope: str) -> None:
    body, headers = wire(envelope)
    assert json.loads(handler_request(envelope, SUBJECT, headers, body).body) == {
        "message_id": "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
        "subject": "vibespro.event.vibe_created.v2",
        "event_type": "vibe_created",
        "event_version": 2,
        "occurred_at": "2025-12-28T22:00:00.000000Z",
        "correlation_id": "550e8400-e29b-41d4-a716-446655440000",
        "causation_id": None,
        "payload": {"title": "Café", "n": 1.5},
    }


def test_the_handler_envelope_is_passed_on_byte_by_byte() -> None:
    body, headers = wire("handler")
    assert handler_request("handler", SUBJECT, headers, body).body == HANDLER_BODY.encode()


def test_the_handler_learns_the_id_of_the_event_and_not_its_generation() -> None:
    body, headers = wire("raw")
    request = json.loads(handler_request("raw", SUBJECT, headers | {"Nats-Msg-Id": f"{ID}.3"}, body).body)
    assert request["message_id"] == ID


def test_the_request_has_every_field_even_where_the_message_has_none() -> None:
    request = handler_request("raw", "sea.event.case_opened.v3", {"Nats-Msg-Id": ID}, b"{}").body
    assert json.loads(request) == {
        "message_id": ID,
        "subject": "sea.event.case_opened.v3",
        "event_type": "case_opened",
        "event_version": 3,
        "occurred_at": None,
        "correlation_id": None,
        "causation_id": None,
        "payload": {},
    }


def test_a_time_of_another_zone_reaches_the_handler_in_utc() -> None:
    headers = wire("raw")[1] | {"Relay-Occurred-At": "0001-01-01T01:00:00+01:00"}
    assert (
        json.loads(handler_request("raw", SUBJECT, headers, b"1").body)["occurred_at"]
        == "0001-01-01T00:00:00.000000Z"
    )
