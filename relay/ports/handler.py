"""PORT-047-005: the handler of a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from relay.domain.actor import Actor
from relay.domain.envelopes import Incoming
from relay.domain.identity import Originals
from relay.domain.large import Reference
from relay.domain.model import HandlerResult


@dataclass(frozen=True, slots=True)
class HandlerRequest:
    """One call of a handler (SDS-047 §12). ``body`` is the JSON request, ready to send.

    ``event``: what the body says, for a handler in this process; then the body may be empty.
    ``message_id`` is the key of the inbox; ``originals`` has the texts of ids that are no UUIDs.
    ``source_id``: the id of the message, if its row has another key.
    ``idempotency_key`` is different for each message, and the same for its copies. ``token`` is the token of the
    claim. A handler in this process may use it to settle the row itself, in the transaction of its own writes.
    ``traceparent``: the span of this call, if the message belongs to a trace. ``personal``: it has encrypted
    values that the handler gets in plain text. ``reference``: where its large payload is;
    ``brought``: that has come.
    """

    message_id: UUID
    subject: str
    event_type: str
    event_version: int
    correlation_id: UUID | None
    attempt: int
    body: bytes | bytearray
    headers: Mapping[str, str]
    token: UUID
    originals: Originals = field(default_factory=dict)
    idempotency_key: str = ""
    actor: Actor | None = None
    traceparent: str | None = None
    source_id: UUID | None = None
    event: Incoming | None = None
    personal: bool = False
    reference: Reference | None = None
    brought: bool = False


class EventHandler(Protocol):
    """PORT-047-005. It may be called again with the same message id. It must answer within its time-out."""

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """Call the handler. Never raises because of an answer of the handler.

        For a ``settled`` answer, ``processed_at`` is already committed, fenced by the request's token.
        """
