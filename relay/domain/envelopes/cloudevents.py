"""``cloudevents``: CloudEvents 1.0.2 on NATS.

In binary mode the attributes are ``ce-`` headers and the body is the payload, unchanged. In structured mode the
body is the event in the JSON format. Reading takes both. Version 1.0.2 of the NATS binding has the structured mode
only, without headers; the binary mode and the header ``Content-Type`` come from the next version.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from relay.domain.envelopes.event import Envelope, Outgoing, Own
from relay.domain.errors import MalformedMessage
from relay.domain.identity import MSG_ID
from relay.domain.reading import read_json, read_object, read_version
from relay.domain.traceparent import find

_CONTENT_TYPE: Final = "Content-Type"
_PREFIX: Final = "ce-"
_EVENT_FORMAT: Final = "application/cloudevents"
STRUCTURED: Final = f"{_EVENT_FORMAT}+json"
_BATCH: Final = f"{_EVENT_FORMAT}-batch"
_JSON: Final = re.compile(r"[^/\s]+/(?:[^/\s;]+\+)?json", re.IGNORECASE)
#: Printable ASCII without space, double quote and percent: what a header may hold as it is.
_SAFE: Final = "".join(map(chr, {*range(0x21, 0x7F)} - {ord('"'), ord("%")}))
_PLAIN: Final = re.compile(f"[{re.escape(_SAFE)}]*")
#: Attributes that need no encoding: their values are of checked alphabets.
_PLAIN_ONES: Final = frozenset({"specversion", "type", "time", "datacontenttype", "eventversion", "sequence"})
_ATTRIBUTE: Final = re.compile(r"[a-z0-9]+")
_NO_ATTRIBUTES: Final = ("data", "data_base64")


#: What a template may hold: the context, the type and the version of an event, and its partition key.
PLACEHOLDERS: Final = ("context", "name", "version", "key")


class Wording(NamedTuple):
    """How a context writes its events. ``templates``: attributes and their texts, with `PLACEHOLDERS`.

    Without a template the ``source`` is ``/`` and the first token of the subject. The other attributes an event
    may then set itself, with the headers ``ce-subject`` and ``ce-dataschema``.
    """

    context: str = ""
    structured: bool = False
    templates: Sequence[tuple[str, str]] = ()


def cloudevents(wording: Wording) -> Envelope:
    """The envelope of a context."""
    write = _structured if wording.structured else _binary
    return Envelope(lambda event: write(event, _attributes(event, wording)), _decode, _parse)


# --- writing ---


def _attributes(event: Outgoing, wording: Wording) -> dict[str, str | None]:
    """The attributes by their names. None: the event does not have it, and its headers must not set it."""
    attributes = {
        "specversion": "1.0",
        "id": event.id,
        "source": "/" + event.subject.split(".", 1)[0],
        "type": event.event_type,
        "time": event.occurred_at,
        "datacontenttype": "application/json",
        "eventversion": str(event.event_version),
        "partitionkey": event.partition_key or None,
        # Compared as text, so all have the same length.
        "sequence": f"{event.sequence:019}" if event.sequence else None,
        "correlationid": event.correlation_id,
        "causationid": event.causation_id,
        "traceparent": find(event.headers),
    }
    for name, template in wording.templates:
        text = template.format(
            context=wording.context, name=event.event_type, version=event.event_version, key=event.partition_key
        )
        attributes[name] = text or None
    return attributes


def _binary(event: Outgoing, attributes: Mapping[str, str | None]) -> tuple[str, Own]:
    own: Own = {
        f"{_PREFIX}{name}": value if value is None or name in _PLAIN_ONES else _header(value)
        for name, value in attributes.items()
    }
    own[_CONTENT_TYPE] = None  # a header of the event itself could say the other mode
    # Readers refuse the whole event if a name is not valid for an attribute.
    own |= {header: None for header, name, _ in _attribute_headers(event) if not _may_be_set(name)}
    return event.payload, own


def _structured(event: Outgoing, attributes: Mapping[str, str | None]) -> tuple[str, Own]:
    """The event in the JSON format. Attributes that its headers set go into the body too."""
    own: Own = {_CONTENT_TYPE: STRUCTURED}
    members = {name: value for name, value in attributes.items() if value is not None}
    for header, name, value in _attribute_headers(event):
        own[header] = None
        if _may_be_set(name) and name not in attributes:
            members[name] = _text(header, value)
    return f'{json.dumps(members, ensure_ascii=False)[:-1]}, "data": {event.payload}}}', own


def _attribute_headers(event: Outgoing) -> Iterator[tuple[str, str, str]]:
    """The headers by which an event sets attributes: each with the attribute's name, and its value."""
    for header, value in event.headers.items():
        name = header.lower()
        if name.startswith(_PREFIX):
            yield header, name[len(_PREFIX) :], value


def _may_be_set(name: str) -> bool:
    """Whether an event can set an attribute of this name."""
    return name not in _NO_ATTRIBUTES and _ATTRIBUTE.fullmatch(name) is not None


def _header(value: str) -> str:
    """The value of a header, percent-encoded as the binding says."""
    return value if _PLAIN.fullmatch(value) else quote(value, safe=_SAFE)


# --- reading ---


class _Event(NamedTuple):
    """The attributes and the data. ``prefix``: how names of attributes began in their place, such as ``ce-``."""

    attributes: Mapping[str, Any]
    data: Any
    prefix: str = ""

    def get(self, name: str) -> str | None:
        """An attribute as text. A number or a truth value has its text in the JSON format."""
        value = self.attributes.get(name)
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, int):
            raise MalformedMessage("is not a value that an attribute can have", field=f"{self.prefix}{name}")
        return json.dumps(value)

    def required(self, name: str) -> str:
        if not (value := self.get(name)):
            raise KeyError(f"{self.prefix}{name}")
        return value


def _parse(headers: Mapping[str, str], body: bytes) -> _Event:
    lower = {name.lower(): value for name, value in headers.items()}
    kind = _media_type(lower.get("content-type", ""))
    if kind.startswith(_BATCH):
        raise MalformedMessage("is a batch, and a message holds one event", field=_CONTENT_TYPE)
    if kind.startswith(_EVENT_FORMAT) and kind not in (_EVENT_FORMAT, STRUCTURED):
        raise MalformedMessage(f"is not a format that is supported: {STRUCTURED}", field=_CONTENT_TYPE)
    if kind.startswith(_EVENT_FORMAT):
        return _parse_structured(read_object(read_json(body)))
    if f"{_PREFIX}specversion" not in lower:
        # Version 1.0.2 of the binding has no headers, so such a message may be in structured mode.
        content = read_json(body)
        if not isinstance(content, dict) or "specversion" not in content:
            raise MalformedMessage("is missing, and the body has none either", field=f"{_PREFIX}specversion")
        return _parse_structured(content)
    attributes = {
        name[len(_PREFIX) :]: _text(name, value) if "%" in value or value[:1] == '"' else value
        for name, value in lower.items()
        if name.startswith(_PREFIX)
    }
    _check_specversion(attributes["specversion"], _PREFIX)
    _check_json(attributes.get("datacontenttype") or kind, f"{_PREFIX}datacontenttype")
    return _Event(attributes, read_json(body) if body else None, _PREFIX)


def _parse_structured(content: Mapping[str, Any]) -> _Event:
    _check_specversion(content.get("specversion"), "")
    event = _Event(content, content.get("data"))
    data_type = event.get("datacontenttype")
    _check_json(data_type or "", "datacontenttype")
    packed = content.get("data_base64")
    if packed is None:
        return event
    if data_type is None:
        raise MalformedMessage("holds bytes; data must be JSON", field="data_base64")
    if event.data is not None:
        raise MalformedMessage("stands beside data", field="data_base64")
    return event._replace(data=_unpacked(packed))


def _check_specversion(value: Any, prefix: str) -> None:
    if value != "1.0":
        raise MalformedMessage("CloudEvents 1.0 is the only version supported", field=f"{prefix}specversion")


def _unpacked(packed: Any) -> Any:
    try:
        return read_json(base64.b64decode(packed, validate=True))
    except (TypeError, binascii.Error):
        raise MalformedMessage("is not base64", field="data_base64") from None


def _check_json(media_type: str, field: str) -> None:
    """Refuse data that is not JSON. Without a type it may be JSON."""
    if media_type not in ("", "application/json") and not _JSON.fullmatch(_media_type(media_type)):
        raise MalformedMessage("is not the type of JSON: the data must be JSON", field=field)


def _media_type(value: str) -> str:
    """A media type without its parameters."""
    return value.partition(";")[0].strip().lower()


def _text(name: str, value: str) -> str:
    """The text of a header: quotes undone, then percent-encoding, once."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    if "%" not in value:
        return value
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeError:
        raise MalformedMessage("is not percent-encoded UTF-8", field=name) from None


def _decode(_subject: str, headers: Mapping[str, str], event: _Event) -> dict[str, Any]:
    fields = {
        "event_type": event.required("type"),
        "event_version": read_version(event.get("eventversion") or "1"),
        "occurred_at": event.get("time"),
        "correlation_id": event.get("correlationid"),
        "causation_id": event.get("causationid"),
        "partition_key": event.get("partitionkey"),
        "traceparent": event.get("traceparent"),
        "payload": event.data,
    }
    if MSG_ID not in headers:
        fields |= _foreign_id(event)
    return fields


def _foreign_id(event: _Event) -> dict[str, str]:
    """The id of another producer's event. It is unique only within its source, even if it is a UUID.

    An id has no line break, so two different pairs of source and id never make the same text.
    """
    id, source = event.required("id"), event.required("source")
    digest = hashlib.sha256(f"{source}\n{id}".encode(errors="backslashreplace")).hexdigest()
    return {"message_id": id, "idempotency_key": f"sha256:{digest}"}


CLOUDEVENTS: Final = cloudevents(Wording())
