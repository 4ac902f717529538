"""Reads and checks the request of the handler contract. No web framework, no database."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model

from relay.adapters.http import SIGNATURE, VOUCHED, sign, sign_headers
from relay.domain.disclosure import validation
from relay.domain.errors import ConfigurationError, InvalidKey
from relay.domain.identity import Id, check_id

#: How far the time of a signature may differ from the clock, in both directions (Standard Webhooks).
TOLERANCE: Final = timedelta(minutes=5)
_MAX_REASON_CHARS: Final = 500


class Refused(Exception):
    """A request that is answered without calling the handler: ``status``, and the reason in words."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason[:_MAX_REASON_CHARS]


def _any_id(value: object) -> Id:
    try:
        return check_id(str(value) if isinstance(value, UUID) else value, "id").value
    except InvalidKey as error:
        raise ValueError(error.message) from None


#: An id of the contract: a UUID, or the text that its producer wrote.
AnyId = Annotated[UUID | str, PlainValidator(_any_id)]


class Call(BaseModel):
    """The body of ``POST /handle``. Unknown fields are ignored, so that the contract may grow."""

    model_config = ConfigDict(frozen=True)

    message_id: AnyId
    subject: str
    event_type: str
    event_version: int = Field(ge=1)
    occurred_at: datetime | None = None
    correlation_id: AnyId | None = None
    causation_id: AnyId | None = None
    payload: Any


class Payloads:
    """The payload types that a handler understands, by ``name.vN``. ``*`` stands for every other event."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        if not types:
            raise ConfigurationError(
                "no event is named", field="payloads", hint='{"vibe_created.v1": VibeCreated}'
            )
        for name in types:
            _check_name(name)
        self._readers: dict[str, Any] = {
            name: create_model("Payload", payload=(kind, ...)) for name, kind in types.items()
        }

    def read(self, body: bytes) -> tuple[Call, Any]:
        """Read the call, and its payload as the declared type. Raises Refused (422), naming the field at fault."""
        try:
            call = Call.model_validate_json(body)
        except ValidationError as error:
            raise Refused(422, validation(error)) from None
        name = f"{call.event_type}.v{call.event_version}"
        reader = self._readers.get(name) or self._readers.get("*")
        if reader is None:
            raise Refused(422, f"event_type: {name[:100]} is not handled here")
        try:
            return call, reader.model_validate_json(body).payload
        except ValidationError as error:
            raise Refused(422, validation(error)) from None


class Signatures:
    """Verifies Standard Webhooks signatures. ``secret`` may hold several keys, separated by spaces."""

    def __init__(self, secret: str, tolerance: timedelta = TOLERANCE) -> None:
        if not secret.split():
            raise ConfigurationError("is empty", field="secret")
        try:
            sign(secret, "", 0, b"")
        except ValueError as error:
            raise ConfigurationError(
                f"a key that starts with whsec_ is not base64: {error}", field="secret"
            ) from None
        self._secret = secret
        self._tolerance = tolerance.total_seconds()

    def verify(self, headers: Mapping[str, str], body: bytes) -> str:
        """Verify the signature, in constant time, and return the signed message id. Raises Refused (401)."""
        given = {name: headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")}
        if not all(given.values()):
            raise Refused(401, "the request is not signed")
        timestamp = given["timestamp"]
        if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) < 12):
            raise Refused(401, "webhook-timestamp is not a number of seconds")
        if abs(time.time() - int(timestamp)) > self._tolerance:
            raise Refused(401, "webhook-timestamp is too old or too new")
        if not _match(
            sign(self._secret, given["id"], int(timestamp), body)["webhook-signature"], given["signature"]
        ):
            raise Refused(401, "the signature does not match")
        return given["id"]

    def vouch(self, headers: Mapping[str, str]) -> bool:
        """Whether the headers of a request that `verify` let in are signed, too. Raises Refused (401) if wrongly.

        A relay of an earlier release signs only the body: then a header proves nothing.
        """
        given, time = headers.get(SIGNATURE), int(headers["webhook-timestamp"])
        if not given:
            return False
        lines = {name: headers.get(name, "") for name in VOUCHED}
        if not _match(sign_headers(self._secret, headers["webhook-id"], time, lines), given):
            raise Refused(401, "the signature of the headers does not match")
        return True


def _match(expected: str, given: str) -> bool:
    """Whether a signature is among those expected. Every pair is compared, so that the time reveals no key."""
    pairs = [(one, other) for one in expected.split() for other in given.split()[:10]]
    return bool(sum(hmac.compare_digest(one.encode(), other.encode()) for one, other in pairs))


def _check_name(name: str) -> None:
    event, _, version = name.rpartition(".v")
    if name != "*" and not (event and version.isdecimal() and int(version) > 0):
        raise ConfigurationError(
            f"{name[:80]!r} is not the name of an event", field="payloads", hint="write it as vibe_created.v1"
        )
