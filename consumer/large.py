"""Brings large payloads to the messages that refer to them, before their handlers are called."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

from pydantic_core import from_json

from relay.commands.fetch_payloads import FetchPayloads
from relay.domain.errors import MalformedMessage, Outage
from relay.domain.large import Reference
from relay.domain.model import HandlerResult, Verdict
from relay.domain.personal import MARK
from relay.execution.chunk import Answered, AskAll
from relay.ports import HandlerRequest

Ask: TypeAlias = Callable[[HandlerRequest], Awaitable[HandlerResult]]


@dataclass(frozen=True, slots=True)
class BringPayloads:
    """What the subscriptions of a process do with payloads that are elsewhere."""

    payloads: FetchPayloads

    async def before(self, ask: Ask, request: HandlerRequest, *, personal: bool) -> HandlerResult:
        """Call the handler with the payload, which has room in memory until the answer.

        A payload that cannot be had now is an outage: the message waits, and spends no attempt. ``personal``:
        whether encrypted values in it are decrypted.
        """
        assert request.reference is not None
        try:
            async with self.payloads.room_for(request.reference):
                brought = await self._brought(request, request.reference, personal=personal)
                return brought if isinstance(brought, HandlerResult) else await ask(brought)
        except Outage as error:
            return HandlerResult(Verdict.TRANSIENT, str(error), counts=False)

    async def _brought(
        self, request: HandlerRequest, reference: Reference, *, personal: bool
    ) -> HandlerRequest | HandlerResult:
        if request.body:
            body = await self.payloads.between(*_around(request.body, reference))
            return replace(request, body=body, reference=None, personal=personal and MARK in body)
        try:
            payload, hidden = await self.payloads.use(reference, lambda it: (from_json(it), MARK in it))
        except ValueError:
            return HandlerResult(Verdict.POISON, f"{MalformedMessage.code}: its payload is no JSON that is read")
        assert request.event is not None
        event = request.event._replace(payload=payload)
        return replace(request, event=event, reference=None, brought=True, personal=personal and hidden)


def _around(body: bytes | bytearray, reference: Reference) -> tuple[bytes, Reference, bytes]:
    """What stands before and behind the payload in the request of a service."""
    fields = {name: value for name, value in json.loads(body).items() if name != "payload"}
    return json.dumps(fields)[:-1].encode() + b', "payload": ', reference, b"}"


def apart(ask_all: AskAll, ask: Ask) -> AskAll:
    """Messages with large payloads leave their chunk, so that one payload at a time is in memory for it."""

    async def asked(requests: Sequence[HandlerRequest]) -> Mapping[UUID, Answered]:
        large = [it for it in requests if it.reference is not None]
        if not large:
            return await ask_all(requests)
        rest = [it for it in requests if it.reference is None]
        answers = dict(await ask_all(rest)) if rest else {}
        for request in large:
            begun = time.perf_counter()
            answers[request.message_id] = await ask(request), time.perf_counter() - begun
        return answers

    return asked
