"""Messages of a version that this worker does not know yet: they wait while another worker may know it.

During a deploy an old worker gets messages of a new version. Each worker says in its heartbeats what it has
handlers for, so an old one can see whether it is only a matter of time. The message is put off without an attempt,
as by `RetryLater`, and any worker may claim it next.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from relay.domain.members import handled_names
from relay.domain.policies import UNKNOWN_VERSION, Retry, Unhandled
from relay.domain.retry import Backoff
from relay.ports import ClaimedMessage

#: How often a message comes back that some worker knows, and one that none does: after as long as it has waited.
_SOON: Final = Backoff(maximum=timedelta(seconds=5))
_LATER: Final = Backoff(maximum=timedelta(seconds=30))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForVersion:
    """When a message of one subscription waits for a worker that knows its version.

    ``knows``: whether a worker that was there in the last ten minutes handles any of these names. ``longest``: how
    long a message waits if so. ``unseen``: how long if not; None: not at all.
    """

    context: str
    subscription: str
    knows: Callable[[list[str]], Awaitable[bool]]
    longest: timedelta
    unseen: timedelta | None = None

    async def judged(self, claim: ClaimedMessage, verdict: Unhandled) -> Unhandled | Retry:
        """The verdict on a message without a handler here: it waits, or is dead as without this."""
        at = claim.received_at
        age = timedelta(seconds=0.0 if at is None else max(0.0, time.time() - at.timestamp()))
        known = age < self.longest and await self.knows(self._names(claim))
        if not known and (self.unseen is None or age >= self.unseen):
            return verdict
        pause = (_SOON if known else _LATER).by_age(age, random.random())  # noqa: S311
        if not known and self.unseen is not None:
            pause = min(pause, max(self.unseen - age, _LATER.initial))
        return Retry(pause, f"{UNKNOWN_VERSION}: {verdict.reason}", counts=False, seconds=verdict.seconds)

    def _names(self, claim: ClaimedMessage) -> list[str]:
        """What a handler of it may be registered for: its type, or the name of the command."""
        row = claim.row
        return handled_names(self.context, self.subscription, row.event_type, row.subject, row.event_version or 1)
