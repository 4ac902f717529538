"""Gauges of the lag: how much is due. A part that could not be read has none, so that nobody takes it for 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from relay.domain.errors import RelayError
from relay.domain.lag import ContextLag

#: Name, text, and labels besides the context.
LAG_GAUGES: Final = (
    ("lag_events", "Events that could be published now.", ()),
    ("lag_tasks", "Tasks that could run now.", ()),
    ("lag_messages", "Messages that could be handled now, in the stream or the inbox.", ("subscription",)),
    ("lag_stream_pending", "Of the stream, messages that were never delivered.", ("subscription",)),
    ("lag_stream_unacknowledged", "Messages that were delivered and not acknowledged.", ("subscription",)),
)


def lag_families(lags: Mapping[str, ContextLag]) -> Iterator[Metric]:
    """Yield the gauges for the lag of each context."""
    families = {name: _family(name, text, labels) for name, text, labels in LAG_GAUGES}
    for context, lag in lags.items():
        for name, labels, value in _values(lag):
            families[name].add_metric((context, *labels), value)
    yield from families.values()


def _family(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"jetrelay_{name}", text, labels=("context", *labels))


def _values(lag: ContextLag) -> Iterator[tuple[str, tuple[str, ...], float]]:
    if not isinstance(lag.tables, RelayError):
        yield "lag_events", (), lag.tables.outbox.count
        yield "lag_tasks", (), lag.tables.tasks.count
    for name, stream in lag.streams.items():
        if not isinstance(stream, RelayError):
            yield "lag_stream_pending", (name,), stream.pending
            yield "lag_stream_unacknowledged", (name,), stream.unacknowledged
        if not isinstance(found := lag.of(name), RelayError):
            yield "lag_messages", (name,), found.count
