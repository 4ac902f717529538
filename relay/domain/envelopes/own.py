"""Keeps the mistakes of an application's own envelope from harming other events and messages.

Without this, a message with which a decoder fails would come again and again and delay its subscription. An event
with which an encoder fails would delay its shard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from relay.domain.envelopes.event import Envelope, Outgoing, Own
from relay.domain.errors import InvalidEvent, InvalidHeader, InvalidSubject, MalformedMessage
from relay.domain.identity import EVENT_ID, GENERATION, MSG_ID, check_id
from relay.domain.limits import MAX_DEPTH, check_headers, nests_deeper

Result = TypeVar("Result")

_OF_THE_ROW: Final = frozenset({EVENT_ID.lower(), GENERATION.lower()})


def guarded(envelope: Envelope, name: str) -> Envelope:
    """The envelope; any error of it refuses one event or message. ``name``: its name in the settings."""

    def encode(event: Outgoing) -> tuple[bytes, Own]:
        try:
            body, headers = envelope.encode(event)
            return _checked_body(body), _checked_headers(headers)
        except InvalidEvent:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise InvalidEvent(_failed(name, error), field="envelope", hint="mend its encoder") from error

    def parse(headers: Mapping[str, str], body: bytes) -> Any:
        return _reading(name, lambda: envelope.parse(headers, body))

    def decode(subject: str, headers: Mapping[str, str], content: Any) -> Mapping[str, Any]:
        return _reading(name, lambda: _checked_fields(envelope.decode(subject, headers, content)))

    return Envelope(encode, decode, parse)


def _reading(name: str, read: Callable[[], Result]) -> Result:
    try:
        return read()
    except (MalformedMessage, InvalidSubject, KeyError):
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        # The text of the error may show the payload, so tell only its type.
        raise MalformedMessage(_failed(name, error), field="envelope") from None


def _failed(name: str, error: BaseException) -> str:
    return f"{name} failed with {type(error).__name__}"


def _checked_body(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    if not isinstance(body, str):
        raise TypeError("a body is text or bytes")
    return body.encode()


def _checked_headers(headers: Own) -> Own:
    """The headers, which may hold ``Nats-Msg-Id`` beside those that an event may have.

    They may not set the headers that name the outbox row: an audit would not find the event and send it again.
    """
    set_ = {name: value for name, value in headers.items() if value is not None}
    if (msg_id := set_.pop(MSG_ID, None)) is not None:
        check_id(msg_id, MSG_ID)
    check_headers(set_)
    for name in set_:
        if name.lower() in _OF_THE_ROW:
            raise InvalidHeader("is set by jetrelay", field=f"headers.{name}")
    return headers


def _checked_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields whose payload a handler can be sent."""
    payload = fields["payload"]
    json.dumps(payload, allow_nan=False)
    if nests_deeper(payload, MAX_DEPTH):
        raise MalformedMessage(f"the payload nests deeper than {MAX_DEPTH}", field="payload")
    return fields
