"""The high-water mark: up to where a stream's messages are known to be in the inbox (DESIGN §6, order per key).

JetStream numbers a consumer's deliveries without a gap. If every number up to some delivery has reached the
inbox, no earlier message of any key can still arrive or be lost with a worker. Deliveries after a gap wait until
the gap is filled, or until stream and inbox have been compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: How many ranges after a gap are remembered. A forgotten range costs time, never order.
_MAX_RANGES: Final = 100


@dataclass(frozen=True, slots=True)
class DeliveryRange:
    """Deliveries ``first`` to ``last``, all in the inbox. ``stream_seq`` is their highest place in the stream."""

    first: int
    last: int
    stream_seq: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """Every delivery with a number up to ``consumer_seq`` is in the inbox.

    The inbox also holds every message of the consumer up to ``stream_seq``. ``consumer_seq`` None: the server's
    numbers have started again, and stream and inbox must be compared first. ``ahead``: what arrived after a gap.
    """

    consumer_seq: int | None = 0
    stream_seq: int = 0
    ahead: tuple[DeliveryRange, ...] = ()

    def received(self, deliveries: Iterable[tuple[int, int]]) -> Watermark:
        """The mark after these deliveries (number, place) have reached the inbox."""
        ranges = list(_ranges(deliveries))
        number = self.consumer_seq
        if number is not None and any(it.last <= number and it.stream_seq > self.stream_seq for it in ranges):
            # An old number for a new place: the server's numbers have gone back.
            return Watermark(None, self.stream_seq, tuple(ranges))
        return self._absorb([*self.ahead, *ranges])

    def compared(self, consumer_seq: int | None, stream_seq: int) -> Watermark:
        """The mark after a comparison has found that the inbox holds everything up to this consumer state."""
        mark = Watermark(self.consumer_seq, max(self.stream_seq, stream_seq))
        if consumer_seq is not None and (self.consumer_seq is None or consumer_seq > self.consumer_seq):
            mark = Watermark(consumer_seq, mark.stream_seq)
        return mark._absorb(self.ahead)

    def rewound(self, consumer_seq: int, stream_seq: int) -> Watermark:
        """The mark after the server shows a number behind ours: it was restored, or the consumer was made again.

        The server redelivers what it does not know as delivered, so waiting for that loses nothing.
        """
        if self.consumer_seq is None or self.consumer_seq <= consumer_seq:
            return self
        if stream_seq <= self.stream_seq:
            return Watermark(consumer_seq, stream_seq)
        return Watermark(None, self.stream_seq)

    def _absorb(self, ranges: Iterable[DeliveryRange]) -> Watermark:
        number, place, ahead = self.consumer_seq, self.stream_seq, list[DeliveryRange]()
        for later in sorted(ranges, key=lambda it: it.first):
            if number is not None and later.first <= number + 1:
                number, place = max(number, later.last), max(place, later.stream_seq)
            elif ahead and later.first <= ahead[-1].last + 1:
                last = ahead[-1]
                joined = max(last.last, later.last), max(last.stream_seq, later.stream_seq)
                ahead[-1] = DeliveryRange(last.first, *joined)
            else:
                ahead.append(later)
        return Watermark(number, place, tuple(ahead[-_MAX_RANGES:]))


def _ranges(deliveries: Iterable[tuple[int, int]]) -> Iterable[DeliveryRange]:
    return (DeliveryRange(number, number, place) for number, place in deliveries)
