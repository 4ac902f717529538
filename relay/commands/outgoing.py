"""Turns a row of the outbox into the message to publish."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from relay.domain.actor import check_actor
from relay.domain.envelopes import Envelope, Outgoing, encode
from relay.domain.errors import InvalidEvent, InvalidHeader, InvalidKey, PayloadTooLarge
from relay.domain.expiry import EXPIRES_AT
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID, ID, check_id
from relay.domain.limits import check_headers, check_payload_text, check_size
from relay.domain.routing import EXPECTED_STREAM, Routing
from relay.domain.subject import check_stream
from relay.domain.traceparent import find, trace_id
from relay.ports import Message, OutboxRow

#: Subject and headers without the key are smaller than this. A character of the key takes up to twelve bytes. A
#: body that is small enough beside both needs no exact check.
_MAX_OVERHEAD_BYTES: Final = 16_384
#: A key of more characters cannot be a header: the server takes 64 kB of them.
_MAX_KEY_CHARS: Final = 65_535
_IDS: Final = {ID, CORRELATION_ID, CAUSATION_ID}


def outgoing(
    row: OutboxRow, *, routing: Routing, envelope: Envelope | str, max_payload: int, system_actor: str = "system"
) -> Message:
    """Check a row again, because any program may have inserted it, and encode it. Raises InvalidEvent."""
    # Unpacked at once, and positional arguments below: names would cost a third of the time for a message.
    (id, name, version, payload, at, correlation, causation, key, topic, given, _, generation, other, named, seq,
     expires_at) = row  # fmt: skip
    if payload is None:
        raise PayloadTooLarge("takes more bytes than the server takes", field="payload")
    if len(key) > _MAX_KEY_CHARS:
        raise InvalidKey(f"has more than {_MAX_KEY_CHARS} characters", field="partition_key")
    subject, stream = routing.destination(name, version, topic)
    headers = _headers(given)
    shown = id
    if other is not None:
        shown, correlation, causation = _originals(row)
    check_payload_text(payload)
    if not at:
        raise InvalidEvent("is infinite", field="occurred_at")
    row_id = "" if shown == id else id
    own = shown, subject, name, version, at, correlation, causation, payload, headers
    # As Outgoing(...) does, without its function in Python.
    event = tuple.__new__(Outgoing, (*own, key, row_id, system_actor, seq))
    body, wire_headers = encode(envelope, event, generation)
    if named is not None:
        stream = check_stream(named)
    if stream is not None:
        wire_headers[EXPECTED_STREAM] = stream
    if expires_at:
        wire_headers[EXPIRES_AT] = expires_at
    if len(body) + 12 * len(key) + _MAX_OVERHEAD_BYTES > max_payload:
        around = sum(len(header) + len(value) + 4 for header, value in wire_headers.items())
        check_size(len(subject) + len(body) + around, max_payload)
    return tuple.__new__(Message, (id, subject, body, wire_headers, key))


def trace_of(row: OutboxRow) -> str | None:
    """The id of the trace that a row belongs to, for log lines; None without one."""
    if row.payload is None:  # too large to be read, so its headers were not read either
        return None
    try:
        return trace_id(find(_headers(row.headers)))
    except InvalidEvent:
        return None


def shown_ids(row: OutboxRow) -> tuple[str, str | None, str | None]:
    """The ids of a row, its operation and its cause, as people see them; UUIDs if a text cannot be used."""
    own = (row.id, row.correlation_id, row.causation_id)
    try:
        return own if row.originals is None else _originals(row)
    except InvalidEvent:
        return own


def _originals(row: OutboxRow) -> tuple[str, str | None, str | None]:
    """The ids of a row as they are sent: its originals, checked, before its UUIDs."""
    text = row.originals or "{}"
    check_payload_text(text)
    originals = json.loads(text)
    if not isinstance(originals, dict) or not originals.keys() <= _IDS:
        raise InvalidEvent(f"must be a JSON object with {', '.join(sorted(_IDS))}", field="originals")
    for name, text in originals.items():
        if not check_id(text, f"originals.{name}").derived:
            raise InvalidKey("is a UUID, which is an id of the row itself", field=f"originals.{name}")
    return (
        originals.get(ID, row.id),
        originals.get(CORRELATION_ID, row.correlation_id),
        originals.get(CAUSATION_ID, row.causation_id),
    )


def _headers(text: str) -> Mapping[str, str]:
    """The row's own headers, checked. Almost no row has any, so parsing is rare."""
    if text == "{}":
        return {}
    check_payload_text(text)
    headers = json.loads(text)
    if not isinstance(headers, dict):
        raise InvalidHeader("must be a JSON object", field="headers")
    check_headers(headers)
    check_actor(headers)
    return headers
