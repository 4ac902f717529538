"""jetrelay's own envelopes, and one of an application, keep the contract of envelopes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from relay.adapters.jsonschema import validated
from relay.domain.envelopes import ENVELOPES, Envelope, Outgoing, Own, by_version
from relay.domain.envelopes.cloudevents import Wording, cloudevents
from relay.domain.envelopes.own import guarded
from relay.schemas import versions
from relay.testing.contracts import EnvelopeContract


@dataclass(frozen=True)
class Bench:
    envelope: Envelope | str
    required: frozenset[str] = frozenset({"Nats-Msg-Id"})
    version: str | None = None


REQUIRED = ("message_type", "message_id", "timestamp", "actor_id", "actor_kind", "payload", "idempotency_key")


class TestHandler(EnvelopeContract):
    @pytest.fixture
    def bench(self) -> Bench:
        return Bench("handler", frozenset({"Nats-Msg-Id", "event_type", "event_version", "payload"}))


class TestMessageEnvelope(EnvelopeContract):
    @pytest.fixture
    def bench(self) -> Bench:
        required = {"schema_version", "message_type", "message_id", "timestamp", "payload"}
        required |= {"actor_id", "actor_kind", "idempotency_key"}
        return Bench("message-envelope", frozenset(required), "schema_version")


class TestMessageEnvelopeWithItsSchema(TestMessageEnvelope):
    @pytest.fixture
    def bench(self) -> Bench:
        envelope = validated(ENVELOPES["message-envelope"], "schema_version", versions("message-envelope"))
        return Bench(envelope, frozenset({"schema_version", *REQUIRED}), "schema_version")


class TestCloudEvents(EnvelopeContract):
    @pytest.fixture
    def bench(self) -> Bench:
        return Bench("cloudevents", frozenset({"ce-type", "ce-specversion"}), "ce-specversion")


class TestCloudEventsInStructuredMode(EnvelopeContract):
    @pytest.fixture
    def bench(self) -> Bench:
        wording = Wording(
            "up", True, [("source", "/up/{context}"), ("subject", "{key}"), ("dataschema", "u:{name}")]
        )
        return Bench(cloudevents(wording), frozenset({"specversion", "type"}), "specversion")


class TestRaw(EnvelopeContract):
    @pytest.fixture
    def bench(self) -> Bench:
        return Bench("raw")


def _write(event: Outgoing) -> tuple[str, Own]:
    words = {"v": "2.0", "what": event.event_type, "n": event.event_version, "when": event.occurred_at}
    about = {"of": event.correlation_id, "by": event.causation_id}
    return json.dumps({**words, **about, "says": json.loads(event.payload)}), {}


def _read(_subject: str, _headers: Mapping[str, str], body: Any) -> dict[str, Any]:
    return {
        "event_type": body["what"],
        "event_version": body["n"],
        "occurred_at": body["when"],
        "correlation_id": body.get("of"),
        "causation_id": body.get("by"),
        "payload": body["says"],
    }


class TestOneOfAnApplication(EnvelopeContract):
    @pytest.fixture
    def bench(self) -> Bench:
        own = Envelope(_write, by_version("v", {"1.0": _read, "2.0": _read}))
        return Bench(guarded(own, "python:app"), frozenset({"v", "what", "n", "when", "says"}), "v")
