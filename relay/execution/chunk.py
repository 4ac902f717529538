"""Many messages handled at once (``chunk``): one claim, one settlement, but a verdict for each message.

Only messages that were never tried share a chunk. A retry is handled alone. So a message that kills its
worker can harm the other messages of a chunk only once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from relay.adapters.postgres.inbox_chunks import PostgresChunks
from relay.domain.controls import Limit
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack, DeadLetter, Disposition, Retry, Unhandled
from relay.execution.rows import Decided, SingleRows
from relay.execution.runners import RunOnLoop
from relay.ports import ClaimedMessage, EventHandler, HandlerRequest

#: How many messages of a chunk a service handles at the same time.
_MAX_CALLS: Final = 8

#: An answer, and the seconds that it took.
Answered: TypeAlias = tuple[HandlerResult, float]
#: Calls a handler for many messages; returns an answer for each.
AskAll: TypeAlias = Callable[[Sequence[HandlerRequest]], Awaitable[Mapping[UUID, Answered]]]
#: For each message of a chunk: its request, or the verdict if it needs no call.
ChunkRequest: TypeAlias = Mapping[UUID, HandlerRequest | Decided[Disposition]]
#: For each message of a chunk: its answer, or the verdict if it needed no call.
ChunkAnswer: TypeAlias = Mapping[UUID, Answered | Decided[Disposition]]
#: The verdict on each message of a chunk.
Verdicts: TypeAlias = Mapping[UUID, Disposition]


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


class ChunkableRows(SingleRows[UUID, ClaimedMessage, HandlerRequest], Protocol):
    """Messages that can be handled in chunks."""

    async def limit_now(self) -> Limit:
        """The limit of an operator, maybe none."""

    async def judged(self, claim: ClaimedMessage, verdict: Retry | DeadLetter, /) -> Retry | DeadLetter:
        """The verdict on a failure, by what is known of the handler."""

    async def follow(self, claim: ClaimedMessage, verdict: Retry | DeadLetter, /) -> timedelta | None:
        """Do what follows from a recorded failure; returns after how long to try again."""


@dataclass(frozen=True, slots=True)
class ClaimedChunk:
    """The claims of a chunk, all under one token, and the ids of its messages that were ``tried`` before."""

    claims: Sequence[ClaimedMessage]
    tried: Sequence[UUID]

    @property
    def since(self) -> float:
        """`time.monotonic` before the claims were requested."""
        return self.claims[0].since if self.claims else math.inf


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The steps of `relay.execution.rows` for whole chunks, and their settlement."""

    rows: ChunkableRows
    claims: PostgresChunks
    ask_all: AskAll

    @property
    def lease(self) -> timedelta:
        return self.rows.lease

    @property
    def after_claim(self) -> str:
        return self.rows.after_claim

    async def claim(self, ids: Sequence[UUID]) -> ClaimedChunk:
        if await self.rows.limit_now():
            # A limit lets them begin one by one.
            return ClaimedChunk([], ids)
        return ClaimedChunk(*await self.claims.claim(ids, self.lease))

    async def renew(self, chunk: ClaimedChunk) -> bool:
        return await self.claims.renew(chunk.claims, self.lease)

    def request(self, chunk: ClaimedChunk) -> ChunkRequest:
        return {claim.row.message_id: self.rows.request(claim) for claim in chunk.claims}

    async def ask(self, request: ChunkRequest) -> ChunkAnswer:
        answers: dict[UUID, Answered | Decided[Disposition]] = {}
        requests: list[HandlerRequest] = []
        for id, one in request.items():
            if isinstance(one, Decided):
                answers[id] = one
            else:
                requests.append(one)
        return answers | {**await self.ask_all(requests)} if requests else answers

    def decide(self, answer: ChunkAnswer, chunk: ClaimedChunk, _seconds: float) -> Verdicts:
        verdicts: dict[UUID, Disposition] = {}
        for claim in chunk.claims:
            one = answer[claim.row.message_id]
            if isinstance(one, Decided):
                verdicts[claim.row.message_id] = one.verdict
            else:
                verdicts[claim.row.message_id] = self.rows.decide(one[0], claim, one[1])
        return verdicts

    async def settle(self, chunk: ClaimedChunk, verdicts: Verdicts) -> dict[UUID, timedelta]:
        """Settle the messages; returns those that must be handled alone, and after how long."""
        later = dict.fromkeys(chunk.tried, timedelta(0))
        done: list[ClaimedMessage] = []
        rest: list[ClaimedMessage] = []
        for claim in chunk.claims:
            verdict = verdicts[claim.row.message_id]
            (done if isinstance(verdict, Ack) and verdict.settled else rest).append(claim)
        await self.rows.finish(done)
        return later | await self._record(rest, verdicts) if rest else later

    async def _record(self, claims: Sequence[ClaimedMessage], verdicts: Verdicts) -> dict[UUID, timedelta]:
        """Record the verdicts on messages that no handler has settled. Returns the messages to try again."""
        asked = {claim.row.message_id: claim for claim in claims if _in_doubt(claim, verdicts)}
        certain = [claim for claim in claims if claim.row.message_id not in asked]
        # First: what succeeded speaks for the handler when the others are judged.
        later = await self._written(certain, verdicts) if certain else {}
        if not asked:
            return later
        judged = await asyncio.gather(*(self._judged(claim, verdicts) for claim in asked.values()))
        return later | await self._written([*asked.values()], dict(zip(asked, judged, strict=True)))

    async def _judged(self, claim: ClaimedMessage, verdicts: Verdicts) -> Disposition:
        verdict = verdicts[claim.row.message_id]
        return verdict if isinstance(verdict, Ack) else await self.rows.judged(claim, verdict)

    async def _written(self, claims: Sequence[ClaimedMessage], verdicts: Verdicts) -> dict[UUID, timedelta]:
        new = {claim.row.message_id: verdicts[claim.row.message_id] for claim in claims if not claim.row.rejected}
        ours = await self.claims.settle(new, claims[0].token) if new else set()
        ours |= {claim.row.message_id for claim in claims if claim.row.rejected}
        held = [claim for claim in claims if claim.row.message_id in ours]
        await self.rows.finish([it for it in held if isinstance(verdicts[it.row.message_id], Ack)])
        later: dict[UUID, timedelta] = {}
        for claim in held:
            verdict = verdicts[claim.row.message_id]
            if not isinstance(verdict, Ack) and (delay := await self.rows.follow(claim, verdict)) is not None:
                later[claim.row.message_id] = delay
        return later


def _in_doubt(claim: ClaimedMessage, verdicts: Verdicts) -> bool:
    """Whether the verdict depends on what is known of the handler or of other workers, or says something of it."""
    verdict = verdicts[claim.row.message_id]
    if isinstance(verdict, Ack):
        return False
    return claim.probe or verdict.doubt is not None or isinstance(verdict, Unhandled)


#: Runs chunks: its keys are the ids of a chunk. It returns the messages that must be handled alone, and when.
RunChunk: TypeAlias = RunOnLoop[
    Sequence[UUID], ClaimedChunk, ChunkRequest, ChunkAnswer, Verdicts, dict[UUID, timedelta]
]
