"""When the handler of a subscription counts as away, and what follows (docs/decisions/0030-circuit.md).

A failure that looks like an outage is a question: is the message at fault, or the handler? Other messages answer
it. If several fail and none succeeds, the handler is away: the circuit opens, and these failures cost no attempt.
If others succeed, the message is at fault, and spends its attempts. A message that is alone spends them too, else
one that always fails would be tried for ever. Where the handler was not even reached, no message can be at fault.

A `Circuit` is what the table ``handler_circuits`` holds about a subscription. Nothing here acts. All times are
those of the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from relay.domain.retry import Backoff

#: A message that has not failed for so long is no witness any more.
REMEMBERED: Final = timedelta(minutes=5)
#: How many witnesses are remembered: those that failed last.
MOST_WITNESSES: Final = 100
#: A message that failed more often than this, while others succeeded, is no witness: it is at fault itself.
TRUSTED: Final = 3
#: A handler that did well so lately is not away, unless a message would die. Nor is one that began to fail so
#: lately:
#: what succeeded beside it may not be recorded yet.
LATELY: Final = timedelta(milliseconds=500)
#: A handler that fails at this rate is away, too. The rate is believed from so many times as many failures on as
#: it
#: takes without any success, within this time.
HIGH_RATE: Final = 0.9
_MANY: Final = 5
_RATE_TIME: Final = timedelta(minutes=1)
#: A circuit that opens again so soon after it closed gives no attempts back, and makes longer pauses. Otherwise a
#: message that always fails, beside others that succeed, would never be judged.
FLAPPING: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitPolicy:
    """When a circuit opens, and how often a single message is tried while it is open.

    It opens when ``failures`` calls in a row have failed, for at least ``messages`` different messages. If a
    message would use up its attempts, ``messages`` calls are enough. When it has been open for ``longest``, probes
    spend attempts again: maybe only bad messages are left, and somebody must see them.
    """

    messages: int = 3
    failures: int = 10
    probe: Backoff = Backoff(initial=timedelta(seconds=1), maximum=timedelta(seconds=2), jitter=0)
    longest: timedelta = timedelta(days=1)


class Reported(NamedTuple):
    """A call that failed as in an outage. ``attempts`` includes it.

    ``surely``: the handler was not reached, so no message is at fault. ``last``: it was the last attempt.
    ``later``: when the handler itself wants the next call.
    """

    message_id: UUID
    attempts: int
    error: str
    surely: bool = False
    last: bool = False
    later: timedelta | None = None


class Witness(NamedTuple):
    """A message whose calls have failed since the latest success: ``calls``, from ``first`` to ``latest``.

    Before that it had failed ``base`` times.
    """

    first: datetime
    latest: datetime
    calls: int
    base: int

    @property
    def trusted(self) -> bool:
        """Whether it speaks against the handler."""
        return self.base <= TRUSTED


@dataclass(frozen=True, slots=True)
class Successes:
    """How many messages were processed since a moment, and when the latest was; None if not known."""

    count: int
    latest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """The circuit of a subscription. It is open since ``opened_at``; None: it is closed.

    ``failed``: failures ``since`` a moment, for the rate, but not those of messages that failed often before.
    ``closed_at``: when it last closed. ``probe_id``: the only message that may be called while it is open.
    ``probe_at``: when another may be chosen.
    ``probes`` have failed one after the other.
    """

    witnesses: Mapping[UUID, Witness] = field(default_factory=dict)
    since: datetime | None = None
    failed: int = 0
    opened_at: datetime | None = None
    closed_at: datetime | None = None
    reason: str | None = None
    probe_id: UUID | None = None
    probe_at: datetime | None = None
    probes: int = 0

    # --- while it is closed ---

    def noting(self, reports: Sequence[Reported], now: datetime) -> Circuit:
        """Take failures as evidence, and forget what is too old."""
        witnesses = {id: it for id, it in self.witnesses.items() if now - it.latest < REMEMBERED}
        failed = 0
        for report in reports:
            known = witnesses.pop(report.message_id, Witness(now, now, 0, report.attempts - 1))
            witnesses[report.message_id] = known._replace(latest=now, calls=known.calls + 1)
            failed += known.base + known.calls <= TRUSTED
        newest = dict(sorted(witnesses.items(), key=lambda it: it[1].latest)[-MOST_WITNESSES:])
        if self.since is None or now - self.since >= _RATE_TIME:
            return replace(self, witnesses=newest, since=now, failed=failed)
        return replace(self, witnesses=newest, failed=self.failed + failed)

    def suspects(self, reports: Sequence[Reported], policy: CircuitPolicy) -> bool:
        """Whether there are failures enough to ask what succeeded meanwhile."""
        return any(it.surely for it in reports) or self._accuses(reports, policy) or self._is_many(policy)

    def after(self, successes: Successes) -> Circuit:
        """Leave out the failures before the latest success: what fails on has failed so often at its own fault."""
        latest, kept = successes.latest, dict[UUID, Witness]()
        for id, it in self.witnesses.items():
            if latest is None or it.first > latest:
                kept[id] = it
            elif it.latest > latest:
                kept[id] = Witness(it.latest, it.latest, 1, it.base + it.calls - 1)
        return replace(self, witnesses=kept)

    def is_away(
        self, reports: Sequence[Reported], successes: Successes, policy: CircuitPolicy, now: datetime
    ) -> bool:
        """Whether the handler counts as away, by what failed after the latest success."""
        if any(it.surely for it in reports) and (successes.latest is None or now - successes.latest >= LATELY):
            return True
        begun = min((it.first for it in self.witnesses.values()), default=now)
        silent = now - (successes.latest or begun) >= LATELY
        if self._accuses(reports, policy) and (silent or any(it.last for it in reports)):
            return True
        if self.since is None or now - self.since < LATELY:
            return False
        return self._is_many(policy) and self.failed >= HIGH_RATE * (self.failed + successes.count)

    def _accuses(self, reports: Sequence[Reported], policy: CircuitPolicy) -> bool:
        trusted = [it for it in self.witnesses.values() if it.trusted]
        enough = any(it.last for it in reports) or sum(it.calls for it in trusted) >= policy.failures
        return len(trusted) >= policy.messages and enough

    def _is_many(self, policy: CircuitPolicy) -> bool:
        return self.failed >= _MANY * policy.failures

    def counting_again(self, policy: CircuitPolicy, now: datetime) -> Circuit:
        """Begin to count anew for the rate, if there were failures enough and the rate was low."""
        return replace(self, since=now, failed=0) if self._is_many(policy) else self

    # --- opening, and while it is open ---

    @property
    def is_open(self) -> bool:
        """Whether only the probe may be called."""
        return self.opened_at is not None

    def excuses(self, policy: CircuitPolicy, now: datetime) -> bool:
        """Whether it is open, and a failure costs no attempt."""
        return self.opened_at is not None and now - self.opened_at < policy.longest

    def flaps(self, now: datetime) -> bool:
        """Whether it closed a short time ago."""
        return self.closed_at is not None and now - self.closed_at < FLAPPING

    def opened(self, reports: Sequence[Reported], policy: CircuitPolicy, now: datetime) -> Circuit:
        """Open it. Its witnesses are kept, so that their attempts can be given back."""
        probes = self.probes + 1 if self.flaps(now) else 0
        opened = replace(self, opened_at=now, since=None, failed=0, probe_id=None)
        return _pausing(opened, reports, probes, policy, now)

    def probe_failed(self, reports: Sequence[Reported], policy: CircuitPolicy, now: datetime) -> Circuit:
        """Note that its probe failed."""
        return _pausing(replace(self, probe_id=None), reports, self.probes + 1, policy, now)

    def probing(self, message_id: UUID, until: datetime) -> Circuit:
        """Choose its probe. ``until``: when its job is sent again if nobody has taken it."""
        return replace(self, probe_id=message_id, probe_at=until)

    def closed(self, now: datetime) -> Circuit:
        """Close it."""
        return replace(self, opened_at=None, closed_at=now, reason=None, probe_id=None, probe_at=None)


def _pausing(
    circuit: Circuit, reports: Sequence[Reported], probes: int, policy: CircuitPolicy, now: datetime
) -> Circuit:
    """Set the time of the next probe: by the back-off, or as late as the handler itself wants it."""
    later = max((it.later for it in reports if it.later is not None), default=timedelta(0))
    pause = max(policy.probe.delay(probes + 1, 0.0), later)
    return replace(circuit, reason=reports[-1].error, probes=probes, probe_at=now + pause)
