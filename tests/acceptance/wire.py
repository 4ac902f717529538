"""Version 2.0 of an envelope, as an application makes it: what is new, and a reader for each version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from relay.domain.envelopes import ENVELOPES, Envelope, Outgoing, Own, by_version

OLD = ENVELOPES["message-envelope"]


def encode(event: Outgoing) -> tuple[str, Own]:
    """Breaking changes: ``payload`` is ``data`` now, and a region is required."""
    body, headers = OLD.encode(event)
    fields = json.loads(body)
    data = fields.pop("payload")
    return json.dumps({**fields, "schema_version": "2.0", "region": "eu", "data": data}), headers


def read_2_0(subject: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(body["region"], str):
        raise TypeError("region")
    return OLD.decode(subject, headers, {**body, "schema_version": "1.0", "payload": body["data"]})


ENVELOPE = Envelope(encode, by_version("schema_version", {"1.0": OLD.decode, "2.0": read_2_0}))
