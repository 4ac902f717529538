"""Checks an envelope by JSON Schemas, one for each version of its body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from relay.domain.envelopes import Envelope, Outgoing, Own
from relay.domain.errors import InvalidPayload, MalformedMessage


def validated(envelope: Envelope, field: str, schemas: Mapping[str, str]) -> Envelope:
    """The envelope, with each body checked by the schema of its version.

    ``field``: where a body names its version. A version without a schema is not checked. If the envelope itself
    refuses a body, it does so first, with its own reason.
    """
    validators = {version: _validator(json.loads(text)) for version, text in schemas.items()}

    def breach(body: Mapping[str, Any]) -> tuple[str, str] | None:
        validator = validators.get(body[field])
        try:
            return None if validator is None or validator.is_valid(body) else _breach(validator, body)
        except UnicodeEncodeError:
            return "body", "holds half of a surrogate pair, which is no text"

    def encode(event: Outgoing) -> tuple[str | bytes, Own]:
        body, headers = envelope.encode(event)
        if found := breach(json.loads(body)):
            raise InvalidPayload(found[1], field=found[0])
        return body, headers

    def decode(subject: str, headers: Mapping[str, str], body: Any) -> Mapping[str, Any]:
        fields = envelope.decode(subject, headers, body)
        if found := breach(body):
            raise MalformedMessage(found[1], field=found[0])
        return fields

    return Envelope(encode, decode, envelope.parse)


def _validator(schema: Any) -> jsonschema_rs.Draft202012Validator:
    # Offline: no schema may make us fetch another one.
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True, offline=True)


def _breach(validator: jsonschema_rs.Draft202012Validator, body: object) -> tuple[str, str]:
    """The field at fault, and the keyword that it breaks. The error's own text repeats the value."""
    error = next(iter(validator.iter_errors(body)))
    name = error.kind.as_dict().get("property") if error.kind.name == "required" else None
    path = [str(part) for part in (*error.instance_path, name) if part is not None]
    return ".".join(path)[:200] or "body", f"does not fit the JSON Schema of its version: {error.kind.name}"
