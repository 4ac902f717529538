"""One row in the thread that took it: its handler is a plain function.

A row is claimed together with others that wait in this process (`relay.execution.prefetch`). If none waits, it is
claimed alone. Then the claim also begins the function's transaction, and the settlement ends it, each in one
round trip. The thread reports rows that are done to the event loop, which takes many at a time. Otherwise the
thread uses the loop only when something fails. A function that runs past its time limit keeps the thread. The row
is tried again all the same, and ``relieve`` starts another thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic

from relay.adapters.postgres.transactions import Claimed, HandlerTransactions
from relay.domain.model import HandlerResult
from relay.domain.policies import Ack, DeadLetter, Disposition, Retry
from relay.execution.calls import PreparedCall, answer, timed_out
from relay.execution.on_loop import RunOnLoop
from relay.execution.prefetch import Prefetch, Waiting
from relay.execution.rows import ClaimT, KeyT, RequestT, Terms, ThreadRows
from relay.execution.watchdog import Attended, Overdue, Watchdog
from relay.failpoints import reach
from relay.threads import LoopThread


class RunInThread(Generic[KeyT, ClaimT, RequestT]):
    """Runs rows in worker threads. Two runs at once for the same row are safe: only one gets the claim.

    ``one`` does on the event loop what a thread does not. ``later`` enqueues a row after a delay. ``waiting``: the
    rows that wait in this process.
    """

    def __init__(
        self,
        one: RunOnLoop[KeyT, ClaimT, RequestT],
        rows: ThreadRows[KeyT, ClaimT, RequestT],
        transactions: HandlerTransactions,
        loop: LoopThread,
        relieve: Callable[[threading.Thread], Any],
        later: Callable[[KeyT, timedelta], Awaitable[None]],
        waiting: Waiting[KeyT],
    ) -> None:
        self._one = one
        self._rows = rows
        self._transactions = transactions
        self._loop = loop
        self._later = later
        self._watchdog = Watchdog(loop, relieve)
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
            taken.leave()

    def _claim(self, key: KeyT, terms: Terms) -> tuple[ClaimT, Claimed] | None:
        """Take a claim that was made ahead; else claim the row alone and begin its function's transaction."""
        if terms.prefetch and (claim := self.prefetch.take(key)) is not None:
            return claim, self._transactions.claimed(terms.limit)
        command, since = self._rows.claim_command(key), time.monotonic()
        found = self._transactions.claim(command, begin=terms.begin, limit=terms.limit)
        return None if found is None else (self._rows.claimed(command, found[0], since), found[1])

    def _handle(self, claim: ClaimT, taken: Claimed, terms: Terms) -> timedelta | None:
        request = self._rows.request(claim)
        if isinstance(request, Ack | DeadLetter | Retry):
            return self._conclude(claim, request, taken)
        call, begun = self._rows.call(request), time.perf_counter()
        if isinstance(call, PreparedCall) and call.function.signature.is_async:
            taken.leave()
            return self._loop.run_coroutine(self._one.handle(claim))
        try:
            result = call if isinstance(call, HandlerResult) else self._call(call, claim, taken, terms)
        except Overdue:
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
            taken.leave()
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
        taken.leave()
        return self._loop.run_coroutine(self._one.conclude(claim, verdict))

    def _claim_all(self, key: KeyT, others: Sequence[KeyT]) -> Mapping[KeyT, ClaimT]:
        command, since = self._rows.prefetch_command(key, others), time.monotonic()
        claims = [self._rows.claimed(command, row, since) for row in self._transactions.run(command)]
        return {self._rows.key(claim): claim for claim in claims}

    def _give_back(self, claims: Sequence[ClaimT]) -> None:
        self._transactions.run(self._rows.unclaim_command(claims))
