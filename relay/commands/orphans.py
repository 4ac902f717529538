"""Orphans: events that a stream of a context holds and its outbox does not know.

The database of a producer was set back, mostly by a backup that was restored. What it wrote since then is gone,
and its events are in the stream and at the consumers. An operator adopts them, or reports them to the consumers.

Other programs may publish to the stream too. Ours are told by headers that our publisher writes: the partition
key of each event that has one, and the id of the row where ``Nats-Msg-Id`` is another id. A message with neither
may be an event of ours without a key, or somebody else's. Nobody can tell, so it is no orphan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from relay.commands.reconcile import AuditedStream, Progress, Stored, StreamAuditor, nobody, windows
from relay.domain.facts import FactSink, OrphansFound

_MAX_IDS: Final = 20
#: How many of the largest gaps in the ledger are read in turn. Messages of others make gaps, too.
_GAPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanLimits:
    """How much of a stream is read.

    ``page``: how many sequences at a time. ``recent``: in how many of the latest entries of the ledger gaps are
    searched. ``scan``: how many sequences one look of an operator covers at most.
    """

    page: int = 1_000
    recent: int = 100_000
    scan: int = 1_000_000


class OrphanLedger(Protocol):
    """What an outbox knows of the events in a stream. All methods raise DatabaseUnreachable."""

    async def streams(self) -> Sequence[str]:
        """The streams that events were published to."""

    async def gaps(self, stream: str, first: int, limit: int, count: int) -> Sequence[tuple[int, int]]:
        """The largest ranges of sequences without an entry among the latest ``limit`` entries, largest first.

        ``first``: where the stream begins. The range behind the last entry is not among them.
        """

    async def highest(self, stream: str) -> int:
        """The highest recorded sequence, 0 if there is none."""

    async def unknown(self, stream: str, events: Mapping[UUID, Stored]) -> set[UUID]:
        """Those events of a stream that are neither in the outbox, nor archived, nor reported to the consumers."""

    async def first_open(self, stream: str) -> int | None:
        """The sequence of the first orphan that is noted and not reported."""

    async def note(
        self, stream: str, state: AuditedStream, first: int, last: int, orphans: Sequence[Stored]
    ) -> Sequence[UUID]:
        """Note the orphans of a range. Forget others that were noted there, or outside of the stream.

        Returns those that are new.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanPage:
    """Orphans of a stream, in its order. ``checked``: how many sequences were read.

    ``next_after``: where the next look begins; None at the end of the stream.
    """

    context: str
    stream: str
    orphans: Sequence[Stored]
    checked: int = 0
    next_after: int | None = None


class FindOrphans:
    """Compares the streams of a context with its outbox. It may be repeated and run in parallel.

    ``streams``: those of the configuration. ``others``: the names of other contexts, whose subjects are not ours.
    """

    def __init__(
        self,
        context: str,
        streams: Collection[str],
        others: Collection[str],
        ledger: OrphanLedger,
        auditor: StreamAuditor,
        facts: FactSink,
        limits: OrphanLimits = OrphanLimits(),
    ) -> None:
        self._context, self._streams, self._others = context, streams, {name.encode() for name in others}
        self._ledger, self._auditor, self._facts, self._limits = ledger, auditor, facts, limits

    async def tick(self, page: int) -> None:
        """The scheduled check: the likely places and one more page, by number. Notes what it finds.

        Raises BrokerUnreachable and DatabaseUnreachable.
        """
        for stream in await self.streams():
            state, new = await self._auditor.state(stream), list[UUID]()
            for first, last in [] if state is None else await self._ranges(stream, state, page):
                assert state is not None
                found = await self._among(stream, first, last)
                new += await self._ledger.note(stream, state, first, last, found)
            if new:
                self._facts(OrphansFound(context=self._context, stream=stream, count=len(new), ids=new[:_MAX_IDS]))

    async def look(self) -> Sequence[OrphanPage]:
        """The likely places of each stream, and note nothing. Raises BrokerUnreachable and DatabaseUnreachable."""
        pages = []
        for stream in await self.streams():
            state, found = await self._auditor.state(stream), dict[int, Stored]()
            for first, last in [] if state is None else await self._ranges(stream, state, None):
                found |= {orphan.seq: orphan for orphan in await self._among(stream, first, last)}
            orphans = [found[seq] for seq in sorted(found)]
            pages.append(OrphanPage(context=self._context, stream=stream, orphans=orphans))
        return pages

    async def scan(
        self, stream: str, after: int = 0, limit: int | None = None, progress: Progress = nobody
    ) -> OrphanPage:
        """Read a stream behind ``after``, until ``limit`` orphans are found. Notes what it finds.

        Raises BrokerUnreachable and DatabaseUnreachable.
        """
        state = await self._auditor.state(stream)
        if state is None or state.last_seq <= after:
            return OrphanPage(context=self._context, stream=stream, orphans=[])
        begin = first = max(after + 1, state.first_seq)
        end = min(state.last_seq, begin + self._limits.scan - 1)
        orphans: list[Stored] = []
        while first <= end and (limit is None or len(orphans) < limit):
            last = min(first + self._limits.page - 1, end)
            found = await self._among(stream, first, last)
            await self._ledger.note(stream, state, first, last, found)
            orphans += found
            first = last + 1
            progress(first - begin, end - begin + 1)
        if limit is not None and len(orphans) > limit:
            orphans = orphans[:limit]
            first = orphans[-1].seq + 1
        return OrphanPage(
            context=self._context,
            stream=stream,
            orphans=orphans,
            checked=first - begin,
            next_after=first - 1 if first <= state.last_seq else None,
        )

    async def streams(self) -> Sequence[str]:
        """The streams of the configuration, and others that events were published to."""
        return list(dict.fromkeys([*self._streams, *await self._ledger.streams()]))

    async def exists(self, stream: str) -> bool:
        """Whether NATS has the stream. Raises BrokerUnreachable."""
        return await self._auditor.state(stream) is not None

    async def _ranges(self, stream: str, state: AuditedStream, page: int | None) -> Sequence[tuple[int, int]]:
        """The newest messages, those behind the last entry of the ledger, a large gap in it, what is open, a page.

        A database that was set back leaves such a gap, or an end of the stream without entries.
        """
        if state.last_seq < state.first_seq:
            return [(0, 0)]  # nothing to read, and what was noted is to be forgotten
        size = self._limits.page
        begins = [await self._ledger.highest(stream) + 1]
        gaps = await self._ledger.gaps(stream, state.first_seq, self._limits.recent, _GAPS)
        if gaps:
            begins.append(gaps[(page or 0) % len(gaps)][0])
        if (first_open := await self._ledger.first_open(stream)) is not None:
            begins.append(first_open)
        pages = windows(state.first_seq, state.last_seq, page or 0, size)
        likely = [_page(begin, state, size) for begin in begins]
        return list(dict.fromkeys([*(pages[-1:] if page is None else pages), *(it for it in likely if it)]))

    async def _among(self, stream: str, first: int, last: int) -> Sequence[Stored]:
        """The orphans of a range, each once, at its first place."""
        # The stream before the outbox: an event is committed before it is published.
        stored = await self._auditor.stored(stream, first, last)
        ours = {it.event_id: it for it in reversed(stored) if it.event_id is not None and self._is_ours(it)}
        unknown = await self._ledger.unknown(stream, ours) if ours else set()
        return [message for id, message in reversed(ours.items()) if id in unknown]

    def _is_ours(self, message: Stored) -> bool:
        return message.marked and message.subject.partition(b".")[0] not in self._others


def _page(begin: int, state: AuditedStream, size: int) -> tuple[int, int] | None:
    begin = max(begin, state.first_seq)
    return (begin, min(begin + size - 1, state.last_seq)) if begin <= state.last_seq else None
