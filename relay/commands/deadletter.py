"""CMD-052 RouteToDeadLetter: publish EVT-047-002 to ``{context}.dlq.…``."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final
from uuid import uuid4

from relay.commands.incidents import RecordIncidents
from relay.domain import traceparent
from relay.domain.envelopes import LETTER, MSG_ID
from relay.domain.errors import BrokerRefused, BrokerUnreachable, Outage
from relay.domain.facts import DeadLetterDelayed, FactSink, ForeignLetterFound, MessageDeadLettered
from relay.domain.identity import ID, Id
from relay.domain.incidents import encode_original
from relay.domain.letters import INBOX_ID, another_id, is_letter, is_same_letter, letter_id
from relay.domain.limits import WIRE_RESERVE_BYTES
from relay.domain.policies import DeadLetter, Published
from relay.domain.routing import EXPECTED_STREAM, dead_letter_subject
from relay.ports import ClaimedMessage, InboxRow, JetStreamPublisher, StreamLookup

#: So many ids are tried that anybody can compute. The next one is new.
_COMPUTED_IDS: Final = 3


class RouteToDeadLetter:
    """Publishes dead letters. It may be repeated: a letter has an id of its own, which is the same each time.

    A message that was requeued and died again has another dead letter, with another id. A letter that dies makes
    no further letter, or letters would multiply without end: it becomes an incident directly.
    """

    def __init__(
        self,
        context: str,
        publisher: JetStreamPublisher,
        facts: FactSink,
        *,
        stream: str,
        stored: StreamLookup,
        incidents: RecordIncidents,
        letter_streams: Collection[str] = (),
    ) -> None:
        """``stream``: of the context's letters. ``letter_streams``: those that hold letters of any context."""
        self._context, self._publisher, self._facts = context, publisher, facts
        self._stream, self._stored, self._incidents = stream, stored, incidents
        self._letter_streams = frozenset(letter_streams)

    async def route(self, claim: ClaimedMessage, verdict: DeadLetter) -> None:
        """Publish a dead letter, and return when its stream holds it. Of a letter, record the incident instead.

        Raises BrokerUnreachable if that is not certain, also for a missing or full stream; DatabaseUnreachable.
        The verdict stays recorded, and the routing is tried again.
        """
        row = claim.row
        if row.stream in self._letter_streams or is_letter(row.subject, row.headers, row.body):
            await self._incidents.of_rows([row.message_id])
        else:
            await self._publish(claim, verdict)
        self._facts(
            MessageDeadLettered(
                **self._about(claim),
                original_subject=row.subject,
                kind=verdict.kind.value,
                reason=verdict.reason,
            )
        )

    async def delay(self, claim: ClaimedMessage, cause: Outage) -> None:
        """Tell that a letter could not be stored. Its incident is recorded now. Raises DatabaseUnreachable."""
        self._facts(DeadLetterDelayed(**self._about(claim), error=cause.explanation))
        await self._incidents.of_rows([claim.row.message_id])

    def _about(self, claim: ClaimedMessage) -> dict[str, Any]:
        row, shown = claim.row, claim.row.shown
        trace_id = traceparent.trace_id(traceparent.find(row.headers))
        about = {"context": self._context, "subscription": row.subscription, "attempts": claim.attempts}
        return {**about, **shown, "trace_id": trace_id}

    async def _publish(self, claim: ClaimedMessage, verdict: DeadLetter) -> None:
        """Publish until the stream holds our letter.

        A duplicate PubAck only says that the stream had a message with this id: anybody may have sent it, and it
        may be gone. So that message is compared with ours.
        """
        row, body = claim.row, self._body(claim, verdict)
        subject = dead_letter_subject(self._context, row.subject)
        id = letter_id(self._context, row.subscription, row.message_id, claim.requeues + 1)
        for ids_left in range(_COMPUTED_IDS, -1, -1):
            known = await self._send(subject, body, str(id))
            if known is None or await self._is_ours(known, subject, body):
                return
            self._facts(
                ForeignLetterFound(
                    context=self._context,
                    subscription=row.subscription,
                    message_id=row.shown["message_id"] or row.message_id,
                    stream=known.stream,
                    stream_seq=known.seq,
                )
            )
            id = another_id(id, known.seq) if ids_left > 1 else uuid4()
        raise BrokerUnreachable("the stream says of each new id that it has it", hint=_MEND)

    async def _send(self, subject: str, body: bytes, id: str) -> Published | None:
        """Publish a letter. Returns the PubAck if it is a duplicate. Raises BrokerUnreachable."""
        headers = {MSG_ID: id, LETTER: self._context, EXPECTED_STREAM: self._stream}
        outcome = await self._publisher.publish(subject, body, headers)
        if not isinstance(outcome, Published) or outcome.stream != self._stream:
            error = getattr(outcome, "error", outcome)
            raise BrokerUnreachable(f"the dead letter was not stored: {error}", hint=_MEND)
        return outcome if outcome.duplicate else None

    async def _is_ours(self, known: Published, subject: str, body: bytes) -> bool:
        """Whether the message that the stream has is our letter. If it may not be read, it counts as foreign."""
        try:
            stored = await self._stored.find(known.stream, known.seq)
        except BrokerRefused:
            return False
        return stored is not None and stored.subject == subject and is_same_letter(body, stored.body)

    def _body(self, claim: ClaimedMessage, verdict: DeadLetter) -> bytes:
        """The fields of EVT-047-002 and the original, so that an operator can repair and requeue it.

        If the letter exceeds the broker's limit, the original is left out, and then its headers if necessary.
        The inbox row and the stream still hold both.
        """
        row, shown = claim.row, claim.row.shown
        fields: dict[str, Any] = {
            "message_id": _text(shown["message_id"]),
            **_key(row),
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


_MEND: Final = "run `relay streams ensure`: the context's DLQ stream must exist and have room"


def _key(row: InboxRow) -> dict[str, str]:
    """The key of the inbox, if it is not the message's id."""
    return {INBOX_ID: str(row.message_id)} if ID in row.originals else {}


def _text(value: Id | None) -> str | None:
    return None if value is None else str(value)
