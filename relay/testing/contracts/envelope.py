"""The contract of an envelope: it reads what it writes, and it reads or refuses every other message."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from relay.domain.envelopes import MSG_ID, Envelope, Incoming, Outgoing, decode, encode, handler_request
from relay.domain.errors import InvalidEvent, MalformedMessage
from relay.domain.limits import MAX_DEPTH
from relay.testing.contracts.hostile import BODIES, MARKER, NO_TEXT, TEXTS

_ROW: Final = "0193a1b2-0000-7000-8000-000000000001"
_SUBJECT: Final = "up.event.vibe_created.v2"
_NESTED: Final = "[" * MAX_DEPTH + "]" * MAX_DEPTH
_EVENT: Final = Outgoing(
    id="0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
    subject=_SUBJECT,
    event_type="vibe_created",
    event_version=2,
    occurred_at="2025-12-28T22:00:00.000000Z",
    correlation_id="550e8400-e29b-41d4-a716-446655440000",
    causation_id="6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    payload='{"title": "Café", "n": 1.50}',
    headers={"X-Tenant": "blue"},
    partition_key="vibe:42",
)
_EVENTS: Final = (
    _EVENT,
    _EVENT._replace(correlation_id=None, causation_id=None, headers={}, partition_key=""),
    _EVENT._replace(subject="a.topic", partition_key="日本:🎷/é 100%\t"),
    _EVENT._replace(
        payload=f'{{"": [null, true, -9223372036854775808, 1e-7, "\\u0007🎷"], "deep": {_NESTED[1:-1]}}}'
    ),
    _EVENT._replace(
        payload='{"event_type": 7, "payload": {}, "data": [], "specversion": "9", "schema_version": 0}'
    ),
    _EVENT._replace(id="evt_01HQGX8K", row_id=_ROW, correlation_id="req 1", causation_id='50% "\\', payload="{}"),
    _EVENT._replace(payload="{}", occurred_at="9999-12-31T23:59:59.999999Z", event_version=10**9 - 1),
)


class EnvelopeBench(Protocol):
    """An envelope and what its messages must have."""

    @property
    def envelope(self) -> Envelope | str:
        """The envelope, or the name of one of jetrelay's."""

    @property
    def required(self) -> Collection[str]:
        """The fields of the body, and the headers, without which a message is refused."""

    @property
    def version(self) -> str | None:
        """The field of the body, or the header, with the version of the form. None if the form has no version."""


class _Message(NamedTuple):
    """A message on the wire. ``fields``: the body's, if it is a JSON object and not just the payload."""

    headers: Mapping[str, str]
    body: bytes
    fields: Mapping[str, Any] | None

    def with_header(self, name: str, value: str | None) -> _Message:
        kept = {key: text for key, text in self.headers.items() if key != name}
        return self._replace(headers=kept if value is None else {**kept, name: value})

    def with_field(self, name: str, value: Any) -> _Message:
        return self._replace(body=json.dumps({**(self.fields or {}), name: value}).encode())

    def without(self, name: str) -> _Message:
        if name not in (self.fields or {}):
            return self.with_header(name, None)
        rest = {key: value for key, value in (self.fields or {}).items() if key != name}
        return self._replace(body=json.dumps(rest).encode())


class EnvelopeContract:
    """Needs the fixture ``bench``: an `EnvelopeBench`. Its tests are plain functions."""

    def test_what_is_written_is_what_is_read(self, bench: EnvelopeBench) -> None:
        for event in _EVENTS:
            for generation in (0, 3):
                body, headers = encode(bench.envelope, event, generation)
                assert _seen(decode(bench.envelope, event.subject, headers, body)) == _expected(event, generation)

    def test_the_handler_is_sent_what_was_written(self, bench: EnvelopeBench) -> None:
        for event in _EVENTS:
            body, headers = encode(bench.envelope, event)
            request = json.loads(handler_request(bench.envelope, event.subject, headers, body).body)
            assert {name: request[name] for name in ("message_id", "event_type", "event_version", "payload")} == {
                "message_id": event.id,
                "event_type": event.event_type,
                "event_version": event.event_version,
                "payload": json.loads(event.payload),
            }
            assert (request["correlation_id"], request["causation_id"]) == (
                event.correlation_id,
                event.causation_id,
            )

    def test_headers_are_plain_ascii_and_do_not_steer_the_broker(self, bench: EnvelopeBench) -> None:
        for event in _EVENTS:
            for name, value in encode(bench.envelope, event)[1].items():
                assert name == MSG_ID or not name.lower().startswith("nats-")
                assert (name + value).isascii()
                assert (name + value).isprintable()
                assert value == value.strip()

    def test_headers_of_the_caller_never_pass_for_those_of_the_envelope(self, bench: EnvelopeBench) -> None:
        for event in (_EVENT, _EVENTS[1]):
            for name in encode(bench.envelope, _EVENT)[1]:
                for stolen in (name, name.lower(), name.upper()):
                    if stolen.startswith(("nats-", "NATS-")) or name in _EVENT.headers:
                        continue
                    body, headers = encode(bench.envelope, event._replace(headers={stolen: "stolen"}))
                    assert _seen(decode(bench.envelope, _SUBJECT, headers, body)) == _expected(event, 0), stolen

    def test_an_event_that_cannot_be_written_is_refused(self, bench: EnvelopeBench) -> None:
        for payload in ("null", "7", '"text"', "[]", "true"):
            event = _EVENT._replace(payload=payload)
            try:
                body, headers = encode(bench.envelope, event)
            except InvalidEvent:
                continue
            assert _seen(decode(bench.envelope, _SUBJECT, headers, body)) == _expected(event, 0)

    def test_unknown_fields_and_headers_are_ignored(self, bench: EnvelopeBench) -> None:
        message = _message(bench)
        changed = [message.with_header("X-New", "1")]
        if message.fields is not None:
            changed += [message.with_field("newfield", value) for value in (*NO_TEXT, "text")]
        for other in changed:
            assert (event := _read(bench, other)) is not None
            assert _seen(event) == _expected(_EVENT, 0)

    def test_what_is_required_is_refused_when_it_is_absent(self, bench: EnvelopeBench) -> None:
        message = _message(bench)
        for name in bench.required:
            assert name in message.headers or name in (message.fields or {}), f"nothing is called {name}"
            assert _read(bench, message.without(name)) is None, f"{name} is not missed"

    def test_what_else_is_absent_is_read_or_refused(self, bench: EnvelopeBench) -> None:
        message = _message(bench)
        for name in (*message.headers, *(message.fields or {})):
            _read(bench, message.without(name))
        _read(bench, message._replace(headers={}))

    def test_an_unknown_version_is_refused(self, bench: EnvelopeBench) -> None:
        message, name = _message(bench), bench.version
        if name is None:
            return
        for value in ("0.0", "99.0", "", "1.0.0.0"):
            changed = (
                message.with_header(name, value) if name in message.headers else message.with_field(name, value)
            )
            assert _read(bench, changed) is None, f"{name} {value!r} is read"

    def test_values_of_wrong_types_are_read_or_refused(self, bench: EnvelopeBench) -> None:
        message = _message(bench)
        for name in message.fields or {}:
            for value in (*NO_TEXT, *TEXTS):
                _read(bench, message.with_field(name, value))

    def test_hostile_headers_and_ids_are_read_or_refused(self, bench: EnvelopeBench) -> None:
        message = _message(bench)
        for name in message.headers:
            for value in TEXTS:
                _read(bench, message.with_header(name, value))
                _read(bench, message.with_header(name.upper(), value))

    def test_hostile_bodies_are_read_or_refused(self, bench: EnvelopeBench) -> None:
        message = _message(bench)
        cut = [message.body[: len(message.body) * part // 8] for part in range(1, 8)]
        flipped = [
            bytes([*message.body[:at], message.body[at] ^ 0x80, *message.body[at + 1 :]]) for at in (0, 5, 20)
        ]
        for body in (*BODIES, *cut, *flipped):
            _read(bench, message._replace(body=body))
            _read(bench, message._replace(headers={MSG_ID: _EVENT.id}, body=body))

    def test_hostile_depths_are_read_or_refused(self, bench: EnvelopeBench) -> None:
        message = _message(bench)
        for name in message.fields or {}:
            for depth in (MAX_DEPTH, MAX_DEPTH + 2, 990, 100_000):
                nested = message.with_field(name, MARKER).body.replace(
                    json.dumps(MARKER).encode(), b"[" * depth + b"]" * depth
                )
                event = _read(bench, message._replace(body=nested))
                assert event is None or depth <= MAX_DEPTH or name not in bench.required

    def test_hostile_sizes_are_read_or_refused(self, bench: EnvelopeBench) -> None:
        message, large = _message(bench), MARKER * 100_000
        for name in message.headers:
            _read(bench, message.with_header(name, large))
        for name in message.fields or {}:
            _read(bench, message.with_field(name, large))
            _read(bench, message.with_field(name, dict.fromkeys(map(str, range(20_000)), 0)))

    def test_hostile_subjects_are_read_or_refused(self, bench: EnvelopeBench) -> None:
        message = _message(bench)
        for subject in (
            "",
            "a",
            "a.event.b.v0",
            "a.event.b.v99999999999",
            "*.event.>",
            f"{'x' * 4_000}.y",
            *TEXTS,
        ):
            _read(bench, message, subject)
            _read(bench, message._replace(headers={MSG_ID: _EVENT.id}), subject)


def _message(bench: EnvelopeBench) -> _Message:
    body, headers = encode(bench.envelope, _EVENT)
    return _Message(headers, body, _fields(body))


def _fields(body: bytes) -> Mapping[str, Any] | None:
    if body == _EVENT.payload.encode():
        return None
    try:
        content = json.loads(body)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _seen(event: Incoming) -> dict[str, Any]:
    """What a handler sees of an event. The envelope decides about the key of the inbox."""
    originals = event.originals
    return {
        "id": originals.get("id") or str(event.message_id),
        "generation": event.generation,
        "event_type": event.event_type,
        "event_version": event.event_version,
        "occurred_at": event.occurred_at,
        "correlation_id": originals.get("correlation_id") or (event.correlation_id and str(event.correlation_id)),
        "causation_id": originals.get("causation_id") or (event.causation_id and str(event.causation_id)),
        "partition_key": event.partition_key,
        "payload": event.payload,
    }


def _expected(event: Outgoing, generation: int) -> dict[str, Any]:
    return {
        "id": event.id,
        "generation": generation,
        "event_type": event.event_type,
        "event_version": event.event_version,
        "occurred_at": datetime.fromisoformat(event.occurred_at),
        "correlation_id": event.correlation_id,
        "causation_id": event.causation_id,
        "partition_key": event.partition_key or None,
        "payload": json.loads(event.payload),
    }


def _read(bench: EnvelopeBench, message: _Message, subject: str = _SUBJECT) -> Incoming | None:
    """Read a message, and make its request; None if it is refused, with a reason that shows no content."""
    try:
        event = decode(bench.envelope, subject, message.headers, message.body)
    except MalformedMessage as refused:
        said, field = str(refused), refused.field
    else:
        request = json.loads(handler_request(bench.envelope, subject, message.headers, message.body).body)
        assert request["event_type"] == event.event_type
        return event
    assert field, "the reason does not name the part at fault"
    assert len(said) < 400, "the reason is too long for a log line"
    assert MARKER not in said, "the reason repeats what was sent"
    return None
