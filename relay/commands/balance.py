"""Balance: whether every event and every message of a context is accounted for.

After a restore, a move or a rename somebody must say that nothing is lost and nothing is unknown. The comparisons
are those of `relay.commands.reconcile` and `relay.commands.orphans`, here of everything, whatever its age.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from relay.commands.orphans import FindOrphans
from relay.commands.reconcile import FindMissing, Progress, ReconcileStream, nobody
from relay.domain.errors import ConsumerMissing
from relay.domain.history import Level, Of


class Wrong(StrEnum):
    """What is not accounted for."""

    STREAM = "the stream is missing"
    CONSUMER = "the consumer is missing"
    BEHIND = "sequences behind their tables"
    LOST = "published, and not in the stream"
    UNKNOWN = "in the stream, and unknown to the outbox"
    MISSING = "acknowledged, and not in the inbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What was compared: so many were ``checked``, ``coming`` ones are on their way, and ``wrong`` is the rest.

    ``dead``: given up, so accounted for. ``since``: when the stream stored the first one that an inbox lacks.
    """

    context: str
    name: str
    checked: int = 0
    coming: int = 0
    dead: int = 0
    wrong: Mapping[Wrong, int] = field(default_factory=dict)
    since: datetime | None = None


def is_balanced(parts: Sequence[Part]) -> bool:
    """Whether everything is accounted for."""
    return not any(part.wrong for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckBalance:
    """Compares a context's outbox with its streams, and the streams that it reads with its inbox.

    ``declared``: the streams that must be there. One that a rename left may be gone. ``levels``: what waits in the
    tables. ``behind``: the names of sequences that stand too low.
    """

    context: str
    declared: Collection[str]
    reconcile: ReconcileStream
    orphans: FindOrphans
    inboxes: Sequence[FindMissing]
    levels: Callable[[], Awaitable[Sequence[Level]]]
    behind: Callable[[], Awaitable[Sequence[str]]]

    async def run(self, progress: Progress = nobody) -> Sequence[Part]:
        """Compare everything, and repair nothing. Raises BrokerUnreachable and DatabaseUnreachable."""
        levels = {(it.of, it.name): it for it in await self.levels()}
        return [
            await self._outbox(levels),
            *await self._streams(progress),
            *[await self._inbox(find, levels, progress) for find in self.inboxes],
        ]

    async def _outbox(self, levels: Mapping[tuple[Of, str], Level]) -> Part:
        waits, behind = levels[Of.OUTBOX, ""], await self.behind()
        wrong = {Wrong.BEHIND: len(behind)} if behind else {}
        return Part(context=self.context, name="outbox", coming=waits.waiting, dead=waits.dead, wrong=wrong)

    async def _streams(self, progress: Progress) -> Sequence[Part]:
        reports = {it.stream: it for it in await self.reconcile.everything(repair=False, progress=progress)}
        parts = []
        for stream in dict.fromkeys([*await self.orphans.streams(), *reports]):
            report, wrong = reports.get(stream), dict[Wrong, int]()
            if not await self.orphans.exists(stream):
                if stream not in self.declared:
                    continue
                wrong[Wrong.STREAM] = 1
            if report is not None and report.lost:
                wrong[Wrong.LOST] = report.lost
            if unknown := await self._unknown(stream, progress):
                wrong[Wrong.UNKNOWN] = unknown
            checked = 0 if report is None else report.checked + report.tail.count
            parts.append(Part(context=self.context, name=f"stream {stream}", checked=checked, wrong=wrong))
        return parts

    async def _unknown(self, stream: str, progress: Progress) -> int:
        count = 0
        place: int | None = 0
        while place is not None:
            page = await self.orphans.scan(stream, place, progress=progress)
            count, place = count + len(page.orphans), page.next_after
        return count

    async def _inbox(self, find: FindMissing, levels: Mapping[tuple[Of, str], Level], progress: Progress) -> Part:
        name = f"inbox of {find.subscription}"
        try:
            found = await find.run(progress=progress)
        except ConsumerMissing:
            return Part(context=self.context, name=name, wrong={Wrong.CONSUMER: 1})
        waits = levels.get((Of.SUBSCRIPTION, find.subscription))
        return Part(
            context=self.context,
            name=name,
            checked=found.checked,
            coming=found.coming + (0 if waits is None else waits.waiting),
            dead=0 if waits is None else waits.dead,
            wrong={Wrong.MISSING: len(found.missing)} if found.missing else {},
            since=found.since,
        )
