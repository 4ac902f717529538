"""CMD-052 RouteToDeadLetter: publish EVT-047-002 to ``{context}.dlq.…``."""

from __future__ import annotations

import json
from typing import Any

from relay.domain import traceparent
from relay.domain.envelopes import MSG_ID
from relay.domain.errors import BrokerUnreachable
from relay.domain.facts import FactSink, MessageDeadLettered
from relay.domain.identity import ID, Id, generated
from relay.domain.incidents import INBOX_ID, encode_original
from relay.domain.limits import WIRE_RESERVE_BYTES
from relay.domain.policies import DeadLetter, Published
from relay.domain.routing import dead_letter_subject
from relay.ports import ClaimedMessage, JetStreamPublisher


class RouteToDeadLetter:
    """Publishes dead letters. It may be repeated: the letter carries the message's id, so the stream keeps one.

    A message that was requeued and died again has another dead letter. The number of requeues is the generation
    in its id; otherwise the duplicate window would drop the letter.
    """

    def __init__(self, context: str, publisher: JetStreamPublisher, facts: FactSink) -> None:
        self._context = context
        self._publisher = publisher
        self._facts = facts

    async def route(self, claim: ClaimedMessage, verdict: DeadLetter) -> None:
        """Publish a dead letter, and return when its stream holds it.

        Raises BrokerUnreachable if that is not certain, also for a missing or full stream. The verdict
        stays recorded, and the routing is tried again.
        """
        row, body = claim.row, self._body(claim, verdict)
        shown: dict[str, Any] = row.shown
        headers = {MSG_ID: generated(str(row.message_id), claim.requeues)}
        subject = dead_letter_subject(self._context, row.subject)
        outcome = await self._publisher.publish(subject, body, headers)
        if not isinstance(outcome, Published):
            raise BrokerUnreachable(
                f"the dead letter was not stored: {getattr(outcome, 'error', outcome)}",
                hint="run `relay streams ensure`: the context's DLQ stream must exist and have room",
            )
        self._facts(
            MessageDeadLettered(
                context=self._context,
                subscription=row.subscription,
                **shown,
                original_subject=row.subject,
                kind=verdict.kind.value,
                reason=verdict.reason,
                attempts=claim.attempts,
                trace_id=traceparent.trace_id(traceparent.find(row.headers)),
            )
        )

    def _body(self, claim: ClaimedMessage, verdict: DeadLetter) -> bytes:
        """The fields of EVT-047-002 and the original, so that an operator can repair and requeue it.

        If the letter exceeds the broker's limit, the original is left out, and then its headers if necessary.
        The inbox row and the stream still hold both.
        """
        row, shown = claim.row, claim.row.shown
        fields: dict[str, Any] = {
            "message_id": _text(shown["message_id"]),
            **({INBOX_ID: str(row.message_id)} if ID in row.originals else {}),
            "occurrence": claim.requeues + 1,
            "original_subject": row.subject,
            "reason": verdict.reason,
            "class": verdict.kind.value,
            "attempts": claim.attempts,
            "subscription": row.subscription,
            "stream": row.stream,
            "stream_seq": row.stream_seq,
            "event_type": row.event_type,
            "correlation_id": _text(shown["correlation_id"]),
            "causation_id": _text(shown["causation_id"]),
            "headers": dict(row.headers),
            **encode_original(row.body),
        }
        body = json.dumps(fields).encode()
        for name, nothing in (("original", None), ("headers", {})):
            if len(body) > self._publisher.max_payload - WIRE_RESERVE_BYTES:
                fields[name] = nothing
                body = json.dumps(fields).encode()
        return body


def _text(value: Id | None) -> str | None:
    return None if value is None else str(value)
