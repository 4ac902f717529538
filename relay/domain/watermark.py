"""Up to where a stream's messages are known to be in the inbox (DESIGN §6, order per key).

JetStream numbers a consumer's deliveries without a gap. As long as every number up to some delivery has
reached the inbox, no earlier message of any key can still be on its way, or be lost with a worker. What lies
beyond a gap waits until the gap is filled, or until somebody has compared stream and inbox.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: How many spans beyond a gap are remembered. Forgetting one costs time, never order.
_SPANS: Final = 100


@dataclass(frozen=True, slots=True)
class Span:
    """Deliveries ``first`` to ``last``, all in the inbox; ``stream_seq`` is the highest place among them."""

    first: int
    last: int
    stream_seq: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """Everything delivered under a number up to ``consumer_seq`` is in the inbox.

    So is every message up to ``stream_seq`` that the consumer is for. ``consumer_seq`` None: the server's
    numbers have started again, and the two must be compared first. ``ahead``: what arrived beyond a gap.
    """

    consumer_seq: int | None = 0
    stream_seq: int = 0
    ahead: tuple[Span, ...] = ()

    def received(self, deliveries: Iterable[tuple[int, int]]) -> Watermark:
        """After these (number, place) have come into the inbox."""
        spans = list(_spans(deliveries))
        known = self.consumer_seq
        if known is not None and any(span.last <= known and span.stream_seq > self.stream_seq for span in spans):
            # A number that was given out before, for a place not reached before: the server has gone back.
            return Watermark(None, self.stream_seq, tuple(spans))
        return self._absorb([*self.ahead, *spans])

    def compared(self, consumer_seq: int | None, stream_seq: int) -> Watermark:
        """After the inbox was found to hold everything up to a state the consumer was in."""
        mark = Watermark(self.consumer_seq, max(self.stream_seq, stream_seq))
        if consumer_seq is not None and (self.consumer_seq is None or consumer_seq > self.consumer_seq):
            mark = Watermark(consumer_seq, mark.stream_seq)
        return mark._absorb(self.ahead)

    def rewound(self, consumer_seq: int, stream_seq: int) -> Watermark:
        """After the server was seen at a number that lies behind ours: it was restored, or the consumer made anew.

        What it believes not to have delivered comes again, so waiting for it loses nothing.
        """
        if self.consumer_seq is None or self.consumer_seq <= consumer_seq:
            return self
        if stream_seq <= self.stream_seq:
            return Watermark(consumer_seq, stream_seq)
        return Watermark(None, self.stream_seq)

    def _absorb(self, spans: Iterable[Span]) -> Watermark:
        known, place, ahead = self.consumer_seq, self.stream_seq, list[Span]()
        for span in sorted(spans, key=lambda it: it.first):
            if known is not None and span.first <= known + 1:
                known, place = max(known, span.last), max(place, span.stream_seq)
            elif ahead and span.first <= ahead[-1].last + 1:
                last = ahead[-1]
                joined = max(last.last, span.last), max(last.stream_seq, span.stream_seq)
                ahead[-1] = Span(last.first, *joined)
            else:
                ahead.append(span)
        return Watermark(known, place, tuple(ahead[-_SPANS:]))


def _spans(deliveries: Iterable[tuple[int, int]]) -> Iterable[Span]:
    return (Span(number, number, place) for number, place in deliveries)
