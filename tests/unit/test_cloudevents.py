"""CloudEvents 1.0.2 on NATS: both modes, as we write them and as others do."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.envelopes import Incoming, decode, encode
from relay.domain.envelopes.cloudevents import STRUCTURED, Wording, cloudevents
from relay.domain.errors import MalformedMessage
from relay.domain.limits import check_headers
from relay.envelopes import writer
from tests.unit.envelope_support import CE_HEADERS, CORRELATION, EVENT, ID, SUBJECT
from tests.unit.settings_support import BASE, Load, loader, refusal, refused

BINARY, IN_BODY = cloudevents(Wording("sea")), cloudevents(Wording("sea", structured=True))
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FOREIGN = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/them", "ce-type": "opened"}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def read(headers: dict[str, str], body: bytes | str = b"{}") -> Incoming:
    return decode(BINARY, SUBJECT, headers, body.encode() if isinstance(body, str) else body)


def structured(**attributes: Any) -> str:
    known = {"specversion": "1.0", "id": "7", "source": "/them", "type": "opened", "data": {}} | attributes
    return json.dumps({name: value for name, value in known.items() if value is not ...})


# --- what we write ---


def test_an_event_in_structured_mode() -> None:
    event = EVENT._replace(headers={"traceparent": TRACE, "ce-Tenant": "Gr%C3%BCn", "X-Other": "1"})
    body, headers = encode(IN_BODY, event)
    assert body.endswith(b', "data": {"title": "Caf\xc3\xa9", "n": 1.50}}')  # as PostgreSQL wrote it
    assert json.loads(body) == {
        "specversion": "1.0",
        "id": ID,
        "source": "/vibespro",
        "type": "vibe_created",
        "time": "2025-12-28T22:00:00.000000Z",
        "datacontenttype": "application/json",
        "eventversion": "2",
        "partitionkey": "vibe:42",
        "correlationid": CORRELATION,
        "traceparent": TRACE,
        "tenant": "Grün",
        "data": {"title": "Café", "n": 1.5},
    }
    assert headers["Content-Type"] == "application/cloudevents+json"
    assert headers["X-Other"] == "1"
    assert not [name for name in headers if name.lower().startswith("ce-")]


def test_the_attributes_that_a_context_chooses() -> None:
    wording = Wording(
        "sea",
        templates=[
            ("source", "//up/{context}"),
            ("subject", "{key}/{name}"),
            ("dataschema", "https://up.example/{name}/{version}.json"),
        ],
    )
    headers = encode(cloudevents(wording), EVENT)[1]
    assert headers["ce-source"] == "//up/sea"
    assert headers["ce-subject"] == "vibe:42/vibe_created"
    assert headers["ce-dataschema"] == "https://up.example/vibe_created/2.json"
    assert headers.items() >= {**CE_HEADERS, "ce-source": "//up/sea"}.items()


@pytest.mark.parametrize("structured", [False, True])
def test_an_event_without_a_key_has_no_subject_made_of_it(structured: bool) -> None:
    """An empty attribute would make it unreadable for others."""
    envelope = cloudevents(Wording("sea", structured, [("subject", "{key}")]))
    body, headers = encode(envelope, EVENT._replace(partition_key=""))
    assert "subject" not in (json.loads(body) if structured else {it.removeprefix("ce-") for it in headers})


def test_the_trace_of_an_event_is_an_attribute_too() -> None:
    assert (
        encode(BINARY, EVENT._replace(headers={"traceparent": TRACE}))[1].items()
        >= {
            "ce-traceparent": TRACE,
            "traceparent": TRACE,
        }.items()
    )


def test_the_trace_is_an_attribute_also_if_its_header_begins_with_a_capital() -> None:
    assert encode(BINARY, EVENT._replace(headers={"Traceparent": TRACE}))[1]["ce-traceparent"] == TRACE


def test_an_event_may_set_other_attributes_and_none_of_ours() -> None:
    own = {
        "ce-subject": "s",
        "ce-tenant": "blue",
        "CE-Type": "stolen",
        "ce-data": "stolen",
        "Content-Type": STRUCTURED,
    }
    body, headers = encode(BINARY, EVENT._replace(headers=own))
    assert (headers["ce-subject"], headers["ce-tenant"], headers["ce-type"]) == ("s", "blue", "vibe_created")
    assert "Content-Type" not in headers
    assert read(headers, body).payload == json.loads(EVENT.payload)
    content = json.loads(encode(IN_BODY, EVENT._replace(headers=own))[0])
    assert (content["subject"], content["tenant"], content["type"]) == ("s", "blue", "vibe_created")
    assert content["data"] == json.loads(EVENT.payload)


@pytest.mark.parametrize("name", ["ce-my_ext", "ce-", "ce-data", "ce-data_base64"])
def test_a_name_that_no_attribute_can_have_makes_no_event_unreadable(name: str) -> None:
    event = EVENT._replace(headers={name: "v", "ce-atenantwithalongname": "blue"})
    headers = encode(BINARY, event)[1]
    assert headers["ce-atenantwithalongname"] == "blue"
    assert name not in headers
    content = json.loads(encode(IN_BODY, event)[0])
    assert content["atenantwithalongname"] == "blue"
    assert name.removeprefix("ce-") not in content.keys() - {"data"}


def test_headers_are_percent_encoded_as_the_binding_says() -> None:
    key = 'Euro € 😀 "%~!\x7f'
    headers = encode(BINARY, EVENT._replace(partition_key=key))[1]
    assert headers["ce-partitionkey"] == "Euro%20%E2%82%AC%20%F0%9F%98%80%20%22%25~!%7F"


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=30))
def test_any_key_survives_in_both_modes(key: str) -> None:
    for envelope in (BINARY, IN_BODY):
        body, headers = encode(envelope, EVENT._replace(partition_key=key))
        check_headers({name: value for name, value in headers.items() if not name.startswith("Nats-")})
        del headers["Relay-Partition-Key"]
        assert decode(envelope, SUBJECT, headers, body).partition_key == key


# --- what others send ---


def test_an_event_of_another_producer_needs_none_of_our_headers() -> None:
    told = {"ce-correlationid": "req_1", "ce-traceparent": TRACE, "ce-partitionkey": "k", "ce-eventversion": "3"}
    event = read({**FOREIGN, **told, "Content-Type": "application/json; charset=utf-8"}, "[1]")
    again = read(
        {}, structured(correlationid="req_1", traceparent=TRACE, partitionkey="k", eventversion=3, data=[1])
    )
    assert event == again
    assert (event.event_type, event.event_version, event.payload) == ("opened", 3, [1])
    assert (event.partition_key, event.traceparent) == ("k", TRACE)
    assert event.originals == {"id": "7", "correlation_id": "req_1"}


def test_a_type_may_have_dots_as_other_producers_like_them() -> None:
    assert read({**FOREIGN, "ce-type": "com.example.order-placed.v2"}).event_type == "com.example.order-placed.v2"


def test_an_id_is_that_of_its_source() -> None:
    one = read(FOREIGN)
    other = read({**FOREIGN, "ce-source": "/others"})
    assert one.message_id != other.message_id
    assert one.message_id == read(dict(reversed([*FOREIGN.items()]))).message_id
    assert (
        read({}, structured(source="a b", id="c")).message_id
        != read({}, structured(source="a", id="b c")).message_id
    )


def test_events_of_two_sources_may_have_the_same_uuid_and_are_shown_by_it() -> None:
    """Such as that of the order which both tell of."""
    one = read({**FOREIGN, "ce-id": ID})
    other = read({**FOREIGN, "ce-id": ID, "ce-source": "/others"})
    assert one.message_id != other.message_id
    assert one.originals == other.originals == {"id": ID}
    assert one.message_id == read({}, structured(id=ID)).message_id


@pytest.mark.parametrize(
    "content_type", ["application/cloudevents+json; charset=utf-8", "APPLICATION/CloudEvents", None]
)
def test_a_structured_message_with_and_without_its_header(content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-TYPE": content_type}
    assert read(headers, structured(data={"a": 1})).payload == {"a": 1}


def test_quoted_headers_are_read_too() -> None:
    assert read({**FOREIGN, "ce-partitionkey": r'"a \"b\" %C3%A9"'}).partition_key == 'a "b" é'


@pytest.mark.parametrize("data", [{}, [], None, 7, "text"])
def test_data_is_any_json_and_may_be_missing(data: Any) -> None:
    packed = base64.b64encode(json.dumps(data).encode()).decode()
    assert read({}, structured(data=data)).payload == data
    assert read({}, structured(data=..., data_base64=packed, datacontenttype="text/json")).payload == data
    assert read({}, structured(data=data, data_base64=None)).payload == data
    assert read({}, structured(data=...)).payload is None
    assert read(FOREIGN, b"").payload is None


@pytest.mark.parametrize(
    "time", ["2026-01-02T03:04:05Z", "2026-01-02t03:04:05z", "2026-01-02T04:04:05.000000000+01:00"]
)
def test_a_time_is_any_that_rfc_3339_allows(time: str) -> None:
    assert read({**FOREIGN, "ce-time": time}).occurred_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


BAD = [
    ({"Content-Type": "application/cloudevents-batch+json"}, "[]", "Content-Type", "a message holds one event"),
    ({"Content-Type": "application/cloudevents+avro"}, "\x00", "Content-Type", "not a format that is supported"),
    ({"Content-Type": STRUCTURED}, "[]", "body", "not a JSON object"),
    ({**FOREIGN, "ce-datacontenttype": "text/plain"}, "7", "ce-datacontenttype", "data must be JSON"),
    ({**FOREIGN, "Content-Type": "application/octet-stream"}, "\xff", "ce-datacontenttype", "data must be JSON"),
    ({**FOREIGN, "ce-id": ""}, "{}", "ce-id", "is missing"),
    ({**FOREIGN, "ce-id": "x" * 201}, "{}", "message_id", "longer than 200"),
    ({**FOREIGN, "ce-source": ""}, "{}", "ce-source", "is missing"),
    ({**FOREIGN, "ce-specversion": "0.3"}, "{}", "ce-specversion", "1.0 is the only"),
    ({**FOREIGN, "ce-partitionkey": "%C0%A0"}, "{}", "ce-partitionkey", "not percent-encoded UTF-8"),
    ({**FOREIGN, "ce-partitionkey": "%ff"}, "{}", "ce-partitionkey", "not percent-encoded UTF-8"),
    ({}, "{}", "ce-specversion", "is missing"),
    ({}, "7", "ce-specversion", "is missing"),
    ({}, structured(specversion=1.0), "specversion", "1.0 is the only"),
    ({}, structured(type=...), "type", "is missing"),
    ({}, structured(source=...), "source", "is missing"),
    ({}, structured(time={}), "time", "not a value that an attribute can have"),
    ({}, structured(datacontenttype="text/plain", data="7"), "datacontenttype", "data must be JSON"),
    ({}, structured(data=..., data_base64="AAAA"), "data_base64", "data must be JSON"),
    ({}, structured(data=..., data_base64="!", datacontenttype="application/json"), "data_base64", "not base64"),
    ({}, structured(data=..., data_base64=7, datacontenttype="application/json"), "data_base64", "not base64"),
    ({}, structured(data_base64="e30=", datacontenttype="application/json"), "data_base64", "stands beside data"),
]


@pytest.mark.parametrize(("headers", "body", "field", "reason"), BAD)
def test_what_cannot_be_handled_is_refused_with_its_reason(
    headers: dict[str, str], body: str, field: str, reason: str
) -> None:
    with pytest.raises(MalformedMessage, match=reason) as refused:
        read(headers, body)
    assert refused.value.field == field


# --- settings ---


def with_cloudevents(text: str, envelope: str = "cloudevents") -> str:
    return BASE.replace("[contexts.vibespro]", f'[contexts.vibespro]\nenvelope = "{envelope}"\n{text}')


def test_the_settings_of_a_context(load: Load) -> None:
    short = encode(writer(load(with_cloudevents('cloudevents = "structured"')), "vibespro"), EVENT)
    assert json.loads(short[0])["source"] == "/vibespro"
    table = (
        'cloudevents = {mode = "structured", source = "/{context}/x", subject = "{key}", dataschema = "u:{name}"}'
    )
    content = json.loads(encode(writer(load(with_cloudevents(table)), "vibespro"), EVENT)[0])
    assert (content["source"], content["subject"], content["dataschema"]) == (
        "/vibespro/x",
        "vibe:42",
        "u:vibe_created",
    )
    assert encode(writer(load(with_cloudevents("")), "vibespro"), EVENT)[1]["ce-source"] == "/vibespro"
    by_variable = load(with_cloudevents(""), RELAY_CONTEXTS__VIBESPRO__CLOUDEVENTS__MODE="structured")
    assert encode(writer(by_variable, "vibespro"), EVENT)[1]["Content-Type"] == STRUCTURED


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('mode = "batched"', "toml:10: contexts.vibespro.cloudevents.mode: should be 'binary' or 'structured'"),
        ('source = ""', "toml:10: contexts.vibespro.cloudevents.source: must be 1 to 500 characters"),
        ('source = "a b"', "must be 1 to 500 characters of plain ASCII without spaces"),
        ('subject = "{id}"', "has the unknown placeholder {id}; known: {context} {name} {version} {key}"),
        ('subject = "{key.__class__}"', "has the unknown placeholder {key.__class__}"),
        ('subject = "{key:>9999999}"', "has the unknown placeholder {key}"),
        ('subject = "{"', "is not a template"),
        ('dataschema = "/schemas/{name}"', "is not a URI; write https://"),
        ("topic = 1", "unknown key"),
    ],
)
def test_settings_that_cannot_work_are_refused(load: Load, table: str, expected: str) -> None:
    text = with_cloudevents(f"[contexts.vibespro.cloudevents]\n{table}").replace(
        'database_url = "postgresql://db/vibespro"\n', ""
    )
    assert expected in refusal(load, text, DATABASE_URL="postgresql://db/{context}")


def test_settings_without_effect_are_refused(load: Load) -> None:
    error = refused(load, with_cloudevents('cloudevents = "structured"', envelope="raw"))
    assert error.field == "contexts.vibespro.cloudevents.mode"
