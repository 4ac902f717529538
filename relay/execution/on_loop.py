"""One row on the event loop: its handler is a service or a coroutine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, Generic

from relay.batcher import Batcher
from relay.domain.errors import Outage
from relay.domain.policies import Ack, DeadLetter, Disposition, Retry
from relay.execution.lease import renewing
from relay.execution.rows import ClaimT, KeyT, RequestT, Rows
from relay.failpoints import reach

_log = logging.getLogger("relay")

#: How long a row that is done waits for others, in seconds. Alone, each would cost a statement and a write.
PAUSE: Final = 0.005


class RunOnLoop(Generic[KeyT, ClaimT, RequestT]):
    """Runs rows. Two runs at once for the same row are safe: only one gets the claim.

    ``answered`` is called when a handler has answered. ``pause``: how long, in seconds, a row that is done waits
    for others; no time where the next row of its key waits for it. Rows that are done go to ``finished``, from the
    loop and from threads, each with whether its transaction has marked it.
    """

    def __init__(
        self,
        rows: Rows[KeyT, ClaimT, RequestT],
        loop: asyncio.AbstractEventLoop,
        *,
        answered: Callable[[], None] = lambda: None,
        pause: float = PAUSE,
    ) -> None:
        self._rows = rows
        self._answered = answered
        self._settling: set[asyncio.Task[None]] = set()
        self.finished: Batcher[tuple[ClaimT, bool], None] = Batcher(self._finish, loop, pause=pause)

    async def run(self, key: KeyT) -> timedelta | None:
        """Make one attempt; returns after how long to try again, or None when nothing is left to do.

        Raises DatabaseUnreachable; as LeaseOver, when the call was cancelled because its claim could not be
        renewed. The row then keeps its claim until the lease is over.
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
        self._answered()
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
        # In a task of its own: a row that somebody else has locked may keep it for long, and no other row.
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
