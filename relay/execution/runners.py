"""An attempt at a row: claim it, renew the claim, call its handler, decide, settle.

`RunOnLoop` is this sequence, for every kind of rows (`relay.execution.rows`). It calls services and coroutines on
the event loop. `Completions` settles rows that are done, many at a time.

`RunInThread` is the same sequence for plain functions, in the thread that took the job. A thread claims a row
together with other rows that wait in this process (`relay.execution.prefetch`). If none waits, it claims the row
alone. The function's transaction begins with its first statement, and the settlement ends it in one round trip.
The thread uses the loop only to report rows that are done, and if something fails. A function that runs past its
time limit keeps its thread. The row is tried again all the same, and ``replace_thread`` starts another thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Generic, TypeAlias

from relay.adapters.postgres.transactions import HandlerTransactions, RowTransaction
from relay.concurrency import Batcher, LoopThread
from relay.domain.errors import Outage
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack, Disposition
from relay.execution.calls import PreparedCall
from relay.execution.lease import Attended, TimeUp, Watchdog
from relay.execution.prefetch import USUAL_LIMITS, Prefetch, PrefetchLimits, Waiting
from relay.execution.rows import (
    AnswerT,
    ClaimT,
    Decided,
    KeyT,
    LaterT,
    RequestT,
    SingleRows,
    Steps,
    Terms,
    ThreadRows,
    Unclaimed,
    VerdictT,
)
from relay.failpoints import reach

_log = logging.getLogger("relay")

#: How long a row that is done waits for others, in seconds. Each row alone would cost a statement and a write.
GATHER_S: Final = 0.005
#: The same while several rows come within that time, if many rows may be under way.
GATHER_BUSY_S: Final = 0.02


class RunOnLoop(Generic[KeyT, ClaimT, RequestT, AnswerT, VerdictT, LaterT]):
    """Runs rows of one kind. Two runs at once for the same row are safe: only one gets the claim.

    ``settle`` records a verdict and does what follows; it returns when to try again, or None.
    """

    def __init__(
        self,
        steps: Steps[KeyT, ClaimT, RequestT, AnswerT, VerdictT, LaterT],
        settle: Callable[[ClaimT, VerdictT], Awaitable[LaterT | None]],
    ) -> None:
        self._steps = steps
        self._settle = settle
        self._watchdog = Watchdog()

    async def run(self, key: KeyT) -> LaterT | None:
        """Make one attempt; returns when to try again, or None if nothing is left to do.

        Raises DatabaseUnreachable. If the claim could not be renewed and the call was cancelled, it raises the
        subclass LeaseOver. The row then keeps its claim until the lease is over.
        """
        claim = await self._steps.claim(key)
        if claim is None:
            return None
        if isinstance(claim, Unclaimed):
            return claim.later
        reach(self._steps.after_claim)
        return await self.handle(claim)

    async def handle(self, claim: ClaimT) -> LaterT | None:
        """Do the rest of `run` for a claimed row."""
        steps = self._steps
        request = steps.request(claim)
        if isinstance(request, Decided):
            return await self._settle(claim, request.verdict)
        begun = time.perf_counter()
        async with self._watchdog.kept(steps.lease, claim.since, lambda: steps.renew(claim)):
            answer = await steps.ask(request)
        return await self._settle(claim, steps.decide(answer, claim, time.perf_counter() - begun))


#: Runs single rows on the event loop.
RunRow: TypeAlias = RunOnLoop[KeyT, ClaimT, RequestT, HandlerResult, Disposition, timedelta]


class Completions(Generic[KeyT, ClaimT, RequestT]):
    """Settles single rows: a failure at once, rows that are done a moment later and many at a time.

    ``done`` takes rows that are done, from any thread. ``pause`` and ``busy``: how long such a row waits for
    others, in seconds; see `Batcher`. Use 0 if a row of its key waits for it.
    """

    def __init__(
        self,
        rows: SingleRows[KeyT, ClaimT, RequestT],
        loop: asyncio.AbstractEventLoop,
        *,
        pause: float = GATHER_S,
        busy: float = 0.0,
    ) -> None:
        self._rows = rows
        self._marking: set[asyncio.Task[None]] = set()
        self.done: Batcher[tuple[ClaimT, Ack], None] = Batcher(self._begin, loop, pause=pause, busy=busy)

    async def settle(self, claim: ClaimT, verdict: Disposition) -> timedelta | None:
        """Record a verdict and do what follows; returns after how long to try again."""
        if isinstance(verdict, Ack):
            self.done.tell((claim, verdict))
            return None
        return await self._rows.conclude(claim, verdict)

    async def drain(self) -> None:
        """Wait until all rows that are done are settled. No thread may add any more."""
        await self.done.drain()
        while self._marking:
            await asyncio.gather(*self._marking)

    async def _begin(self, done: Sequence[tuple[ClaimT, Ack]]) -> Sequence[None]:
        # In a task of its own: if another process has locked a row, only this task waits, and no other row.
        task = asyncio.get_running_loop().create_task(self._finish(done))
        self._marking.add(task)
        task.add_done_callback(self._marking.discard)
        return [None] * len(done)

    async def _finish(self, done: Sequence[tuple[ClaimT, Ack]]) -> None:
        claims = [claim for claim, verdict in done if verdict.settled]
        claims += await self._mark([claim for claim, verdict in done if not verdict.settled])
        if claims:
            with suppress(Outage):
                await self._rows.finish(claims)

    async def _mark(self, claims: Sequence[ClaimT]) -> Sequence[ClaimT]:
        """Mark rows together. If that fails, mark each alone, so that one bad row spoils no other.

        A row that is not marked keeps its claim until the lease is over. Then the sweep brings it back.
        """
        try:
            return await self._rows.mark(claims) if claims else []
        except Outage:
            return []
        except Exception:
            if len(claims) == 1:
                _log.exception("a row that is finished cannot be marked")
                return []
            return [claim for one in claims for claim in await self._mark([one])]


@dataclass(kw_only=True)
class RunInThread(Generic[KeyT, ClaimT, RequestT]):
    """Runs rows in worker threads. Two runs at once for the same row are safe: only one gets the claim.

    ``on_loop`` runs rows whose handlers are coroutines. ``completions`` settles all rows. ``later`` enqueues a row
    after a delay. ``waiting``: the rows that wait in this process.
    """

    rows: ThreadRows[KeyT, ClaimT, RequestT]
    on_loop: RunRow[KeyT, ClaimT, RequestT]
    completions: Completions[KeyT, ClaimT, RequestT]
    transactions: HandlerTransactions
    loop: LoopThread
    replace_thread: Callable[[threading.Thread], Any]
    later: Callable[[KeyT, timedelta], Awaitable[None]]
    waiting: Waiting[KeyT]
    limits: PrefetchLimits = USUAL_LIMITS
    prefetch: Prefetch[KeyT, ClaimT] = field(init=False)
    _watchdog: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self._watchdog = Watchdog(self.loop.loop)
        self.prefetch = Prefetch(self._claim_many, self._unclaim, self.waiting, self.loop.loop, limits=self.limits)

    def run(self, key: KeyT) -> timedelta | None:
        """Make one attempt, as `RunOnLoop.run` does, but never cancel a function that has begun."""
        terms = self.rows.terms(key)
        if terms is None:
            return self.loop.run_coroutine(self.on_loop.run(key))
        held = self._claim(key, terms)
        if held is None:
            return None
        claim, transaction = held
        try:
            reach(self.rows.after_claim)
            return self._handle(claim, transaction, terms)
        finally:
            transaction.release()

    def _claim(self, key: KeyT, terms: Terms) -> tuple[ClaimT, RowTransaction] | None:
        """Claim the row alone, unless it was prefetched."""
        if terms.prefetch and (claim := self.prefetch.claim(key)) is not None:
            return claim, self.transactions.for_row(terms.limit)
        command, since = self.rows.claim_command(key), time.monotonic()
        held = self.transactions.claim(command, keep=terms.writes, limit=terms.limit)
        return None if held is None else (self.rows.read_claim(command, held[0], since), held[1])

    def _handle(self, claim: ClaimT, transaction: RowTransaction, terms: Terms) -> timedelta | None:
        request = self.rows.request(claim)
        if isinstance(request, Decided):
            return self._settle(claim, request.verdict, transaction)
        call, begun = self.rows.call(request), time.perf_counter()
        if call is None or (isinstance(call, PreparedCall) and call.function.signature.is_async):
            transaction.release()
            return self.loop.run_coroutine(self.on_loop.handle(claim))
        try:
            result = call if isinstance(call, HandlerResult) else self._call(call, claim, transaction, terms)
        except TimeUp:
            # The loop has settled the row.
            return None
        return self._settle(claim, self.rows.decide(result, claim, time.perf_counter() - begun), transaction)

    def _call(self, call: PreparedCall, claim: ClaimT, transaction: RowTransaction, terms: Terms) -> HandlerResult:
        def answered() -> HandlerResult:
            try:
                with call.context.use():
                    return call.run_in_thread(transaction)
            except BaseException as error:
                return call.failed(error)

        if not call.function.signature.in_transaction:
            transaction.release()
        thread = threading.current_thread()

        async def late() -> None:
            self.replace_thread(thread)
            await self._give_up(claim, call, terms.seconds)

        attended = Attended(
            self.rows.lease,
            claim.since,
            lambda: self.rows.renew(claim),
            seconds=terms.seconds,
            late=late,
        )
        return self._watchdog.call(answered, attended)

    async def _give_up(self, claim: ClaimT, call: PreparedCall, seconds: float) -> None:
        """Settle a row whose function takes too long, and enqueue its retry (else the sweep does)."""
        result = await call.late(seconds)
        delay = await self.completions.settle(claim, self.rows.decide(result, claim, seconds))
        if delay is not None:
            await self.later(self.rows.key(claim), delay)

    def _settle(self, claim: ClaimT, verdict: Disposition, transaction: RowTransaction) -> timedelta | None:
        if isinstance(verdict, Ack):
            self.completions.done.tell((claim, verdict))
            return None
        transaction.release()
        return self.loop.run_coroutine(self.completions.settle(claim, verdict))

    def _claim_many(self, key: KeyT, others: Sequence[KeyT]) -> Mapping[KeyT, ClaimT]:
        command, since = self.rows.prefetch_command(key, others), time.monotonic()
        claims = [self.rows.read_claim(command, row, since) for row in self.transactions.run(command)]
        return {self.rows.key(claim): claim for claim in claims}

    def _unclaim(self, claims: Sequence[ClaimT]) -> None:
        self.transactions.run(self.rows.unclaim_command(claims))
