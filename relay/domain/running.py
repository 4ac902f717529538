"""What runs now: a message, a task or a run of a cron job, since when, and in which worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from relay.domain.claim_tokens import mark_of
from relay.domain.members import Member, Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRow:
    """A row that a worker holds. ``kind``: message, task or run. ``part``: its subscription, queue or job.

    ``since``: None for a row that a worker of an earlier release holds, which also has no ``mark``. ``worker``:
    host and process, if the row says so. ``limit``: how many seconds its handler may take, None if only the worker
    knows.
    """

    context: str
    kind: str
    id: str
    part: str | None
    name: str | None
    attempts: int
    since: datetime | None = None
    mark: int | None = None
    worker: str | None = None
    limit: float | None = None

    def seconds(self, now: datetime) -> float | None:
        """For how long it has run."""
        return None if self.since is None else max(0.0, (now - self.since).total_seconds())

    def too_long(self, now: datetime) -> bool:
        """Whether its handler has had more time than it may take."""
        seconds = self.seconds(now)
        return seconds is not None and self.limit is not None and seconds > self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNow:
    """The members of all hosts, what each runs, and what runs in a process that is no member any more.

    ``unread``: contexts that could not be asked what runs, and why. ``leaders``: the scheduler that leads each
    context, None if none does.
    """

    members: Sequence[Seen]
    running: Mapping[str, Sequence[RunningRow]]
    others: Sequence[RunningRow] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    leaders: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def releases(self) -> Mapping[str, int]:
        """How many members run each release. More than one: a deployment goes on, or has stopped half-way."""
        found: dict[str, int] = {}
        for it in self.members:
            if name := it.member.release_shown:
                found[name] = found.get(name, 0) + 1
        return found


def fleet_of(
    members: Sequence[Seen],
    running: Sequence[RunningRow],
    unread: Mapping[str, str],
    leaders: Mapping[str, str | None],
) -> FleetNow:
    """Put what runs to the member that runs it, the longest first."""
    by_mark = {mark_of(it.member.host, it.member.pid): it.member.id for it in members}
    by_name = {_name(it.member): it.member.id for it in members}
    held: dict[str, list[RunningRow]] = {}
    others: list[RunningRow] = []
    for it in sorted(running, key=lambda row: (row.since is None, row.since and row.since.timestamp())):
        id = by_name.get(it.worker or "") or (None if it.mark is None else by_mark.get(it.mark))
        (others if id is None else held.setdefault(id, [])).append(it)
    return FleetNow(members=members, running=held, others=others, unread=unread, leaders=leaders)


def _name(member: Member) -> str:
    return f"{member.host}:{member.pid}"
