"""The circuit of a subscription, as its workers and its upkeep use it. The rules are in `relay.domain.circuit`.

A worker reports the failures that look like an outage before it records them, and so learns whether they cost an
attempt. The upkeep chooses the one message that is tried while the circuit is open. An answer to it closes the
circuit, whatever the answer says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from relay.adapters.postgres.circuits import OpenCircuit, PostgresCircuits, Ruling
from relay.concurrency import Batcher
from relay.domain.circuit import CircuitPolicy, Reported
from relay.domain.errors import Outage
from relay.domain.facts import CircuitClosed, CircuitOpened, FactSink
from relay.domain.policies import DeadLetter, Retry
from relay.ports import ClaimedMessage, InboxAudit

#: How long the job of a probe may take to be claimed before it is sent again.
PROBE_PATIENCE: Final = timedelta(seconds=5)
#: How many waiting messages are enqueued at a time when a circuit closes, and how often. The sweep finds the
#: others.
_RELEASED: Final = 1_000
_RELEASES: Final = 10


async def enqueue_waiting(
    inbox: InboxAudit, subscription: str, enqueue: Callable[[Sequence[UUID]], Awaitable[None]]
) -> None:
    """Enqueue what may be handled again: a handler is back, or a pause is over.

    Raises DatabaseUnreachable and QueueUnreachable.
    """
    for _ in range(_RELEASES):
        ids = await inbox.overdue(subscription, _RELEASED, at_once=True)
        if ids:
            await enqueue(ids)
        if len(ids) < _RELEASED:
            return


@dataclass(slots=True, kw_only=True)
class KeepCircuit:
    """The circuit of one subscription. All methods raise DatabaseUnreachable.

    ``single``: a message may be called only once (``max_attempts = 1``), so an outage that the handler may have
    seen ends it. ``pause``: when to try again if the handler was not reached, but is not away.
    """

    context: str
    subscription: str
    circuits: PostgresCircuits
    inbox: InboxAudit
    enqueue: Callable[[Sequence[UUID]], Awaitable[None]]
    facts: FactSink
    policy: CircuitPolicy
    single: bool = False
    ordered: bool = False
    pause: timedelta = timedelta(seconds=1)
    patience: timedelta = PROBE_PATIENCE
    _reports: Batcher[Reported, Ruling] = field(init=False)

    def __post_init__(self) -> None:
        self._reports = Batcher(self._report)

    async def judged(self, claim: ClaimedMessage, verdict: Retry | DeadLetter) -> Retry | DeadLetter:
        """The verdict on a failure, by what is known of the handler. Any answer to a probe closes the circuit."""
        doubt = verdict.doubt
        if doubt is None:
            if claim.row.rejected is None:
                await self.answered([claim])
            return verdict
        last = isinstance(verdict, DeadLetter) and not self.single
        report = Reported(claim.row.message_id, claim.attempts, doubt.error, doubt.surely, last, doubt.later)
        ruling = await self._reports.ask(report)
        if self.single and not doubt.surely:
            return verdict
        if ruling.excused or (doubt.surely and ruling.after.is_open):
            return Retry(timedelta(0), doubt.error, counts=False, waits=True, seconds=verdict.seconds)
        return Retry(self.pause, doubt.error, counts=False, seconds=verdict.seconds) if doubt.surely else verdict

    async def _report(self, reports: Sequence[Reported]) -> Sequence[Ruling]:
        ruling = await self.circuits.report(self.subscription, reports, self.policy)
        if ruling.has_opened:
            self.facts(
                CircuitOpened(
                    context=self.context, subscription=self.subscription, error=ruling.after.reason or ""
                )
            )
        return [ruling] * len(reports)

    async def answered(self, claims: Sequence[ClaimedMessage]) -> None:
        """The handler has answered. If that was to a probe, close the circuit and let all messages go on.

        If a server is away, the sweep does this within seconds.
        """
        for claim in claims:
            if claim.probe:
                with suppress(Outage):
                    await self._close(claim.row.message_id)

    async def _close(self, probe_id: UUID) -> None:
        duration = await self.circuits.close(self.subscription, probe_id)
        if duration is None:
            return
        seconds = duration.total_seconds()
        self.facts(CircuitClosed(context=self.context, subscription=self.subscription, seconds=seconds))
        await enqueue_waiting(self.inbox, self.subscription, self.enqueue)

    async def tend(self, circuit: OpenCircuit) -> None:
        """Send the next probe if it is time, or close the circuit if its probe was answered."""
        if circuit.probe == "answered" and circuit.probe_id is not None:
            await self._close(circuit.probe_id)
        elif circuit.probe_at is not None and circuit.probe != "running" and circuit.now >= circuit.probe_at:
            keep = circuit.probe_id if circuit.probe == "waiting" else None
            probe = await self.circuits.choose_probe(
                self.subscription, self.patience, keep=keep, ordered=self.ordered
            )
            if probe is not None:
                await self.enqueue([probe])
