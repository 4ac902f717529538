"""Decrypts the personal values of messages for the handlers that get plain text."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias
from uuid import UUID

from relay.commands.open_personal import OpenPersonal
from relay.domain.errors import Outage, PersonalDamaged, SubjectForgotten, UnknownKey
from relay.domain.model import HandlerResult, Verdict
from relay.execution.chunk import Answered, AskAll
from relay.ports import HandlerRequest

Forgotten: TypeAlias = Literal["call", "skip", "dead"]


@dataclass(frozen=True, slots=True)
class OpenRequests:
    """What one subscription does with encrypted values. ``forgotten``: see its settings."""

    values: OpenPersonal
    forgotten: Forgotten

    async def open(self, request: HandlerRequest) -> HandlerRequest | HandlerResult:
        """The request with plain values, or the answer if its handler is not called.

        Keys that cannot be had now are an outage: the message waits, and spends no attempt.
        """
        try:
            opened, forgotten = await self._open(request)
        except Outage as error:
            return HandlerResult(Verdict.TRANSIENT, str(error), counts=False)
        except (UnknownKey, PersonalDamaged) as error:
            return HandlerResult(Verdict.POISON, str(error))
        if not forgotten or self.forgotten == "call":
            return opened
        reason = f"{SubjectForgotten.code}: it is about a person who was forgotten"
        return HandlerResult(Verdict.PROCESSED if self.forgotten == "skip" else Verdict.REFUSED, reason)

    async def _open(self, request: HandlerRequest) -> tuple[HandlerRequest, bool]:
        if request.body:
            content = json.loads(request.body)
            content["payload"], forgotten = await self.values.open(content["payload"])
            return replace(request, body=json.dumps(content).encode(), personal=False), forgotten
        assert request.event is not None
        payload, forgotten = await self.values.open(request.event.payload)
        return replace(request, event=request.event._replace(payload=payload), personal=False), forgotten

    def before(self, ask_all: AskAll) -> AskAll:
        """The same for the requests of a chunk."""

        async def opened(requests: Sequence[HandlerRequest]) -> Mapping[UUID, Answered]:
            begun = time.perf_counter()
            found = await asyncio.gather(*(self.open(it) for it in requests if it.personal))
            seconds = time.perf_counter() - begun
            done = iter(found)
            answers: dict[UUID, Answered] = {}
            rest: list[HandlerRequest] = []
            for request in requests:
                one = next(done) if request.personal else request
                if isinstance(one, HandlerResult):
                    answers[request.message_id] = one, seconds
                else:
                    rest.append(one)
            return {**answers, **await ask_all(rest)} if rest else answers

        return opened
