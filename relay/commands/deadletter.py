"""CMD-052 RouteToDeadLetter: publish EVT-047-002 to ``{context}.dlq.…``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from relay.domain import tracing
from relay.domain.envelopes import MSG_ID
from relay.domain.errors import BrokerUnreachable
from relay.domain.facts import FactSink, MessageDeadLettered
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID, ID, Id, Originals, generated, shown
from relay.domain.incidents import INBOX_ID, encode_original
from relay.domain.limits import WIRE_RESERVE_BYTES
from relay.domain.policies import DeadLetter, Published
from relay.domain.routing import dead_letter_subject
from relay.ports import JetStreamPublisher


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessage:
    """What a dead letter tells about the original.

    ``originals``: the texts of ids that are no UUIDs. ``requeues``: how often an operator had requeued the message
    before it died this time.
    """

    message_id: UUID
    subscription: str
    original_subject: str
    stream: str
    stream_seq: int
    attempts: int
    headers: dict[str, str]
    body: bytes
    event_type: str | None = None
    correlation_id: UUID | None = None
    causation_id: UUID | None = None
    requeues: int = 0
    originals: Originals = field(default_factory=dict)


class RouteToDeadLetter:
    """Publishes dead letters. It may be repeated: the letter carries the message's id, so the stream keeps one.

    A message that was requeued and died again has another dead letter. The number of requeues is the generation
    in its id; otherwise the duplicate window would drop the letter.
    """

    def __init__(self, context: str, publisher: JetStreamPublisher, facts: FactSink) -> None:
        self._context = context
        self._publisher = publisher
        self._facts = facts

    async def route(self, message: FailedMessage, verdict: DeadLetter) -> None:
        """Publish a dead letter, and return when its stream holds it.

        Raises BrokerUnreachable if that is not certain, also for a missing or full stream. The verdict
        stays recorded, and the routing is tried again.
        """
        body = self._body(message, verdict)
        headers = {MSG_ID: generated(str(message.message_id), message.requeues)}
        subject = dead_letter_subject(self._context, message.original_subject)
        outcome = await self._publisher.publish(subject, body, headers)
        if not isinstance(outcome, Published):
            raise BrokerUnreachable(
                f"the dead letter was not stored: {getattr(outcome, 'error', outcome)}",
                hint="run `relay streams ensure`: the context's DLQ stream must exist and have room",
            )
        self._facts(
            MessageDeadLettered(
                context=self._context,
                subscription=message.subscription,
                message_id=shown(message.message_id, message.originals, ID),
                correlation_id=shown(message.correlation_id, message.originals, CORRELATION_ID),
                causation_id=shown(message.causation_id, message.originals, CAUSATION_ID),
                original_subject=message.original_subject,
                kind=verdict.kind.value,
                reason=verdict.reason,
                attempts=message.attempts,
                trace_id=tracing.trace_id(tracing.find(message.headers)),
            )
        )

    def _body(self, message: FailedMessage, verdict: DeadLetter) -> bytes:
        """The fields of EVT-047-002 and the original, so that an operator can repair and requeue it.

        If the letter exceeds the broker's limit, the original is left out, and then its headers if necessary.
        The inbox row and the stream still hold both.
        """
        originals = message.originals
        fields: dict[str, Any] = {
            "message_id": str(shown(message.message_id, originals, ID)),
            **({INBOX_ID: str(message.message_id)} if ID in originals else {}),
            "occurrence": message.requeues + 1,
            "original_subject": message.original_subject,
            "reason": verdict.reason,
            "class": verdict.kind.value,
            "attempts": message.attempts,
            "subscription": message.subscription,
            "stream": message.stream,
            "stream_seq": message.stream_seq,
            "event_type": message.event_type,
            "correlation_id": _text(shown(message.correlation_id, originals, CORRELATION_ID)),
            "causation_id": _text(shown(message.causation_id, originals, CAUSATION_ID)),
            "headers": message.headers,
            **encode_original(message.body),
        }
        body = json.dumps(fields).encode()
        for name, nothing in (("original", None), ("headers", {})):
            if len(body) > self._publisher.max_payload - WIRE_RESERVE_BYTES:
                fields[name] = nothing
                body = json.dumps(fields).encode()
        return body


def _text(value: Id | None) -> str | None:
    return None if value is None else str(value)
