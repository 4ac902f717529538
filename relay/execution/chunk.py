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

from relay.adapters.postgres.chunks import PostgresChunks
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack, DeadLetter, Disposition, Retry
from relay.execution.lease import renewing
from relay.execution.rows import Rows
from relay.failpoints import reach
from relay.ports import ClaimedMessage, EventHandler, HandlerRequest

#: How many messages of a chunk a service handles at the same time.
_MAX_CALLS: Final = 8

#: An answer, and the seconds that it took.
Answered: TypeAlias = tuple[HandlerResult, float]
#: Calls a handler for many messages; returns an answer for each.
AskAll: TypeAlias = Callable[[Sequence[HandlerRequest]], Awaitable[Mapping[UUID, Answered]]]


class ChunkRows(Rows[UUID, ClaimedMessage, HandlerRequest], Protocol):
    """Rows that can be handled in chunks."""

    async def follow(self, claim: ClaimedMessage, verdict: Retry | DeadLetter, /) -> timedelta | None:
        """Do what follows from a recorded failure. Returns after how long to try again."""


def side_by_side(handler: EventHandler, calls: asyncio.Semaphore | None = None) -> AskAll:
    """Call a handler for a few messages at a time; ``calls`` bounds the calls of all chunks together."""

    async def ask_all(requests: Sequence[HandlerRequest]) -> dict[UUID, Answered]:
        slots = calls or asyncio.Semaphore(_MAX_CALLS)

        async def ask(request: HandlerRequest) -> Answered:
            async with slots:
                begun = time.perf_counter()
                return await handler.handle(request), time.perf_counter() - begun

        answers = await asyncio.gather(*(ask(request) for request in requests))
        return {request.message_id: answer for request, answer in zip(requests, answers, strict=True)}

    return ask_all


class RunChunk:
    """Handles the messages of a chunk. Two runs at once with the same ids are safe: only one gets the claims."""

    def __init__(self, rows: ChunkRows, claims: PostgresChunks, ask_all: AskAll) -> None:
        self._rows = rows
        self._claims = claims
        self._ask_all = ask_all

    async def run(self, ids: Sequence[UUID]) -> dict[UUID, timedelta]:
        """Make one attempt at messages; returns those that must be handled alone, and after how long.

        Raises DatabaseUnreachable, or LeaseOver, which is one. Rows that are not settled then keep their claim
        until the lease is over.
        """
        claims, tried = await self._claims.claim(ids, self._rows.lease)
        later = dict.fromkeys(tried, timedelta(0))
        if claims:
            reach(self._rows.after_claim)
            later |= await self._handle(claims)
        return later

    async def _handle(self, claims: Sequence[ClaimedMessage]) -> dict[UUID, timedelta]:
        lease = self._rows.lease
        async with renewing(lease, claims[0].since, lambda: self._claims.renew(claims, lease)):
            verdicts = await self._ask(claims)
        done: list[ClaimedMessage] = []
        rest: list[ClaimedMessage] = []
        for claim in claims:
            (done if _is_settled(verdicts[claim.row.message_id]) else rest).append(claim)
        await self._rows.finish(done)
        return await self._settle(rest, verdicts)

    async def _ask(self, claims: Sequence[ClaimedMessage]) -> dict[UUID, Disposition]:
        verdicts: dict[UUID, Disposition] = {}
        requests: dict[UUID, HandlerRequest] = {}
        for claim in claims:
            request = self._rows.request(claim)
            if isinstance(request, HandlerRequest):
                requests[claim.row.message_id] = request
            else:
                verdicts[claim.row.message_id] = request
        answers = await self._ask_all([*requests.values()]) if requests else {}
        for claim in claims:
            if (answer := answers.get(claim.row.message_id)) is not None:
                verdicts[claim.row.message_id] = self._rows.decide(answer[0], claim, answer[1])
        return verdicts

    async def _settle(
        self, claims: Sequence[ClaimedMessage], verdicts: Mapping[UUID, Disposition]
    ) -> dict[UUID, timedelta]:
        """Record the answers of messages that no handler has settled. Returns the messages to try again."""
        if not claims:
            return {}
        new = {claim.row.message_id: verdicts[claim.row.message_id] for claim in claims if not claim.row.rejected}
        ours = await self._claims.settle(new, claims[0].token) if new else set()
        ours |= {claim.row.message_id for claim in claims if claim.row.rejected}
        held = [claim for claim in claims if claim.row.message_id in ours]
        await self._rows.finish([it for it in held if isinstance(verdicts[it.row.message_id], Ack)])
        later: dict[UUID, timedelta] = {}
        for claim in held:
            verdict = verdicts[claim.row.message_id]
            if not isinstance(verdict, Ack) and (delay := await self._rows.follow(claim, verdict)) is not None:
                later[claim.row.message_id] = delay
        return later


def _is_settled(verdict: Disposition) -> bool:
    return isinstance(verdict, Ack) and verdict.settled
