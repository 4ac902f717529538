"""Gauges of what the worker processes of one command or fleet do now, from their beats."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relay.telemetry.liveness import beats_in

#: Name and text, by what of a beat it is. Threads serve all contexts, so there is no label.
USAGE_GAUGES: Final = {
    "threads": ("worker_threads", "Threads and slots for handlers and tasks, of all worker processes."),
    "busy": ("worker_threads_busy", "Of them, those that are taken."),
    "waiting": ("worker_jobs_waiting", "Jobs that were fetched from Redis and not begun."),
}


class UsageGauges(Collector):
    """Adds up what the processes of a directory say. One that was killed is not counted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterable[Metric]:
        """Answer Prometheus. Runs in another thread."""
        beats = beats_in(self._directory).values()
        for part, (name, text) in USAGE_GAUGES.items():
            yield GaugeMetricFamily(f"jetrelay_{name}", text, value=sum(getattr(it, part) for it in beats))
