"""Many messages handled at once (``chunk``): one claim, one settlement, but a verdict for each message.

Only messages that were never tried share a chunk. A retry is handled alone. So a message that kills its
worker can harm the other messages of a chunk only once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from consumer.process import LEASE, ProcessInboxMessage
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack, DeadLetter, Disposition, Retry
from relay.failpoints import reach
from relay.leases import kept
from relay.ports import ClaimedMessage, EventHandler, HandlerRequest

#: How many messages of a chunk a service handles at the same time.
_AT_ONCE: Final = 8

#: Is called once for each message, with the seconds that its handler took.
Heard: TypeAlias = Callable[[float], None]
#: Calls a handler for many messages; returns an answer for each.
AskAll: TypeAlias = Callable[[Sequence[HandlerRequest], Heard], Awaitable[Mapping[UUID, HandlerResult]]]


class ChunkClaims(Protocol):
    """What a chunk needs from the inbox, beyond PORT-047-002. All methods raise DatabaseUnreachable."""

    async def claim(
        self, ids: Sequence[UUID], lease: timedelta
    ) -> tuple[Sequence[ClaimedMessage], Sequence[UUID]]:
        """Claim the messages that are due, free and untried, under one token.

        Returns the claims, and the ids of messages that were tried before.
        """

    async def renew(self, claims: Sequence[ClaimedMessage], lease: timedelta) -> bool:
        """Extend the claims that are left. Returns False when none is left."""

    async def settle(self, verdicts: Mapping[UUID, Disposition], token: UUID) -> set[UUID]:
        """Record every verdict in one statement; returns the ids whose claim was not lost."""


def side_by_side(handler: EventHandler, room: asyncio.Semaphore | None = None) -> AskAll:
    """Call a handler for a few messages at a time; ``room`` bounds the calls of all chunks together."""

    async def ask_all(requests: Sequence[HandlerRequest], heard: Heard) -> dict[UUID, HandlerResult]:
        slots = room or asyncio.Semaphore(_AT_ONCE)

        async def ask(request: HandlerRequest) -> HandlerResult:
            async with slots:
                begun = time.perf_counter()
                answer = await handler.handle(request)
                heard(time.perf_counter() - begun)
                return answer

        answers = await asyncio.gather(*(ask(request) for request in requests))
        return {request.message_id: answer for request, answer in zip(requests, answers, strict=True)}

    return ask_all


class ProcessChunk:
    """Handles the messages of a chunk. Two runs at once with the same ids are safe: only one gets the claims."""

    def __init__(self, one: ProcessInboxMessage, claims: ChunkClaims, ask_all: AskAll) -> None:
        self._one = one
        self._claims = claims
        self._ask_all = ask_all

    async def process(self, ids: Sequence[UUID]) -> dict[UUID, timedelta]:
        """Process messages; returns those that must be handled alone, and after how long.

        Raises DatabaseUnreachable, or LeaseOver, which is one. Rows that are not settled then keep their claim
        until the lease is over.
        """
        claims, tried = await self._claims.claim(ids, LEASE)
        later = dict.fromkeys(tried, timedelta(0))
        if claims:
            reach("after_message_claim")
            later |= await self._handle(claims)
        return later

    async def _handle(self, claims: Sequence[ClaimedMessage]) -> dict[UUID, timedelta]:
        async with kept(LEASE, claims[0].since, lambda: self._claims.renew(claims, LEASE)):
            verdicts = await self._ask(claims)
        done: list[ClaimedMessage] = []
        rest: list[ClaimedMessage] = []
        for claim in claims:
            (done if _is_settled(verdicts[claim.row.message_id]) else rest).append(claim)
        await self._one.finish(done)
        return await self._settle(rest, verdicts)

    async def _ask(self, claims: Sequence[ClaimedMessage]) -> dict[UUID, Disposition]:
        verdicts: dict[UUID, Disposition] = {}
        requests: dict[UUID, HandlerRequest] = {}
        for claim in claims:
            request = claim.row.condemned or self._one.request(claim)
            if isinstance(request, DeadLetter):
                verdicts[claim.row.message_id] = request
            else:
                requests[claim.row.message_id] = request
        answers = await self._ask_all([*requests.values()], self._one.tell_answered) if requests else {}
        reach("after_handler_before_mark")
        asked = [claim for claim in claims if claim.row.message_id in requests]
        return verdicts | {it.row.message_id: self._one.decide(answers[it.row.message_id], it) for it in asked}

    async def _settle(
        self, claims: Sequence[ClaimedMessage], verdicts: Mapping[UUID, Disposition]
    ) -> dict[UUID, timedelta]:
        """Record what no handler has settled itself; returns what is to be tried again."""
        if not claims:
            return {}
        new = {claim.row.message_id: verdicts[claim.row.message_id] for claim in claims if not claim.row.condemned}
        ours = await self._claims.settle(new, claims[0].token) if new else set()
        ours |= {claim.row.message_id for claim in claims if claim.row.condemned}
        held = [claim for claim in claims if claim.row.message_id in ours]
        await self._one.finish([it for it in held if isinstance(verdicts[it.row.message_id], Ack)])
        later: dict[UUID, timedelta] = {}
        for claim in held:
            match verdicts[claim.row.message_id]:
                case Retry() as retry:
                    self._one.tell_retried(claim, retry)
                    later[claim.row.message_id] = retry.delay
                case DeadLetter() as dead:
                    delay = await self._one.route(claim, dead)
                    if delay is not None:
                        later[claim.row.message_id] = delay
                case Ack():
                    pass
        return later


def _is_settled(verdict: Disposition) -> bool:
    return isinstance(verdict, Ack) and verdict.settled
