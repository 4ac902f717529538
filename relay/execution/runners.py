"""One row, from its claim to its settlement: its handler is called on the event loop, or in a thread.

`RunOnLoop` calls services and coroutines. `RunInThread` calls plain functions in the thread that took the row. A
thread claims a row together with other rows that wait in this process (`relay.execution.prefetch`). If none waits,
it claims the row alone. The function's transaction begins with its first statement, and the settlement ends it in
one round trip. The thread reports rows that are done to the event loop, which takes many at a time. Apart from
that, the thread uses the loop only if something fails. A function that runs past its time limit keeps its thread.
The row is tried again all the same, and ``replace_thread`` starts another thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Generic

from relay.adapters.postgres.transactions import Claimed, HandlerTransactions
from relay.concurrency import Batcher, LoopThread
from relay.domain.errors import Outage
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack, DeadLetter, Disposition, Retry
from relay.execution.calls import PreparedCall, answer, timed_out
from relay.execution.lease import Attended, TimeUp, Watchdog, renewing
from relay.execution.prefetch import Prefetch, Waiting
from relay.execution.rows import ClaimT, KeyT, RequestT, Rows, Terms, ThreadRows
from relay.failpoints import reach

_log = logging.getLogger("relay")

#: How long a row that is done waits for others, in seconds. Each row alone would cost a statement and a write.
GATHER_S: Final = 0.005


class RunOnLoop(Generic[KeyT, ClaimT, RequestT]):
    """Runs rows. Two runs at once for the same row are safe: only one gets the claim.

    ``pause``: how long, in seconds, a row that is done waits for others. If the next row of its key waits for it,
    it does not wait. The loop and the threads hand rows that are done to ``finished``, and say for each whether
    its transaction has marked it.
    """

    def __init__(
        self,
        rows: Rows[KeyT, ClaimT, RequestT],
        loop: asyncio.AbstractEventLoop,
        *,
        pause: float = GATHER_S,
    ) -> None:
        self._rows = rows
        self._settling: set[asyncio.Task[None]] = set()
        self.finished: Batcher[tuple[ClaimT, bool], None] = Batcher(self._finish, loop, pause=pause)

    async def run(self, key: KeyT) -> timedelta | None:
        """Make one attempt; returns after how long to try again, or None when nothing is left to do.

        Raises DatabaseUnreachable. If the claim could not be renewed and the call was cancelled, it raises the
        subclass LeaseOver. The row then keeps its claim until the lease is over.
        """
        claim = await self._rows.claim(key)
        if claim is None or isinstance(claim, timedelta):
            return claim
        reach(self._rows.after_claim)
        return await self.handle(claim)

    async def handle(self, claim: ClaimT) -> timedelta | None:
        """Do the rest of `run` for a claimed row."""
        request = self._rows.request(claim)
        verdict = request if isinstance(request, Ack | DeadLetter | Retry) else await self._ask(claim, request)
        return await self.conclude(claim, verdict)

    async def conclude(self, claim: ClaimT, verdict: Disposition) -> timedelta | None:
        """Record a verdict and do what follows from it. Rows that are done are recorded a moment later."""
        if isinstance(verdict, Ack):
            self.finished.tell((claim, verdict.settled))
            return None
        return await self._rows.conclude(claim, verdict)

    async def _ask(self, claim: ClaimT, request: RequestT) -> Disposition:
        begun = time.perf_counter()
        async with renewing(self._rows.lease, claim.since, lambda: self._rows.renew(claim)):
            result = await self._rows.ask(request)
        return self._rows.decide(result, claim, time.perf_counter() - begun)

    async def drain(self) -> None:
        """Wait until the loop has handled all rows that are done. No thread may report any more."""
        await self.finished.drain()
        while self._settling:
            await asyncio.gather(*self._settling)

    async def _finish(self, done: Sequence[tuple[ClaimT, bool]]) -> Sequence[None]:
        # In a task of its own: if another process has locked a row, only this task waits, and no other row.
        task = asyncio.get_running_loop().create_task(self._settle(done))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return [None] * len(done)

    async def _settle(self, done: Sequence[tuple[ClaimT, bool]]) -> None:
        claims = [claim for claim, marked in done if marked]
        claims += await self._mark([claim for claim, marked in done if not marked])
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


class RunInThread(Generic[KeyT, ClaimT, RequestT]):
    """Runs rows in worker threads. Two runs at once for the same row are safe: only one gets the claim.

    ``one`` does the work that belongs on the event loop. ``later`` enqueues a row after a delay. ``waiting``: the
    rows that wait in this process.
    """

    def __init__(
        self,
        one: RunOnLoop[KeyT, ClaimT, RequestT],
        rows: ThreadRows[KeyT, ClaimT, RequestT],
        transactions: HandlerTransactions,
        loop: LoopThread,
        replace_thread: Callable[[threading.Thread], Any],
        later: Callable[[KeyT, timedelta], Awaitable[None]],
        waiting: Waiting[KeyT],
    ) -> None:
        self._one = one
        self._rows = rows
        self._transactions = transactions
        self._loop = loop
        self._later = later
        self._watchdog = Watchdog(loop, replace_thread)
        self.prefetch: Prefetch[KeyT, ClaimT] = Prefetch(self._claim_all, self._give_back, waiting, loop.loop)

    def run(self, key: KeyT) -> timedelta | None:
        """Make one attempt, as `RunOnLoop.run` does, but never cancel a function that has begun."""
        terms = self._rows.terms(key)
        if terms is None:
            return self._loop.run_coroutine(self._one.run(key))
        found = self._claim(key, terms)
        if found is None:
            return None
        claim, taken = found
        try:
            reach(self._rows.after_claim)
            return self._handle(claim, taken, terms)
        finally:
            taken.release()

    def _claim(self, key: KeyT, terms: Terms) -> tuple[ClaimT, Claimed] | None:
        """Take a claim that was prefetched; else claim the row alone."""
        if terms.prefetch and (claim := self.prefetch.take(key)) is not None:
            return claim, self._transactions.claimed(terms.limit)
        command, since = self._rows.claim_command(key), time.monotonic()
        found = self._transactions.claim(command, keep=terms.writes, limit=terms.limit)
        return None if found is None else (self._rows.claimed(command, found[0], since), found[1])

    def _handle(self, claim: ClaimT, taken: Claimed, terms: Terms) -> timedelta | None:
        request = self._rows.request(claim)
        if isinstance(request, Ack | DeadLetter | Retry):
            return self._conclude(claim, request, taken)
        call, begun = self._rows.call(request), time.perf_counter()
        if isinstance(call, PreparedCall) and call.function.signature.is_async:
            taken.release()
            return self._loop.run_coroutine(self._one.handle(claim))
        try:
            result = call if isinstance(call, HandlerResult) else self._call(call, claim, taken, terms)
        except TimeUp:
            # The loop has settled the row.
            return None
        return self._conclude(claim, self._rows.decide(result, claim, time.perf_counter() - begun), taken)

    def _call(self, call: PreparedCall, claim: ClaimT, taken: Claimed, terms: Terms) -> HandlerResult:
        def answered() -> HandlerResult:
            try:
                with call.context.use():
                    return call.run_in_thread(taken)
            except BaseException as error:
                return answer(error)

        if not call.function.signature.in_transaction:
            taken.release()
        attended = Attended(
            self._rows.lease,
            claim.since,
            terms.seconds,
            renew=lambda: self._rows.renew(claim),
            give_up=lambda: self._give_up(claim, terms.seconds),
        )
        return self._watchdog.call(answered, attended)

    async def _give_up(self, claim: ClaimT, seconds: float) -> None:
        """Settle a row whose function takes too long, and enqueue its retry (else the sweep does)."""
        verdict = self._rows.decide(timed_out(seconds), claim, seconds)
        delay = await self._one.conclude(claim, verdict)
        if delay is not None:
            await self._later(self._rows.key(claim), delay)

    def _conclude(self, claim: ClaimT, verdict: Disposition, taken: Claimed) -> timedelta | None:
        """Record a verdict: a failure on the event loop now, a success a moment later with others."""
        if isinstance(verdict, Ack):
            self._one.finished.tell((claim, verdict.settled))
            return None
        taken.release()
        return self._loop.run_coroutine(self._one.conclude(claim, verdict))

    def _claim_all(self, key: KeyT, others: Sequence[KeyT]) -> Mapping[KeyT, ClaimT]:
        command, since = self._rows.prefetch_command(key, others), time.monotonic()
        claims = [self._rows.claimed(command, row, since) for row in self._transactions.run(command)]
        return {self._rows.key(claim): claim for claim in claims}

    def _give_back(self, claims: Sequence[ClaimT]) -> None:
        self._transactions.run(self._rows.unclaim_command(claims))
