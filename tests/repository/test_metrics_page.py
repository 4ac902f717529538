"""docs/reference/metrics.md has every metric with its labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from relay.domain.facts import LagSampled
from relay.domain.lag import NONE_DUE, ContextLag, StreamLag, TablesLag
from relay.telemetry.gauges import BacklogGauges, UsageGauges
from relay.telemetry.metrics import TIMINGS
from tests.unit.test_metrics import TAKEN, counters, sample, samples

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


@pytest.fixture
def shown(tmp_path: Path) -> dict[str, set[str]]:
    """The labels of everything that can be read, by name."""
    listener, registry = BacklogGauges({"sea": ["inward", "idle"]}, 15), CollectorRegistry()
    registry.register(listener)
    registry.register(counters()[1])  # type: ignore[arg-type]
    registry.register(UsageGauges(tmp_path))
    tables = TablesLag(outbox=NONE_DUE, tasks=NONE_DUE, inbox={})
    lag = ContextLag(context="sea", tables=tables, streams={"inward": StreamLag(pending=0, unacknowledged=0)})
    for fact in (TAKEN, sample(), LagSampled(context="sea", lag=lag)):
        listener(fact)
    found: dict[str, set[str]] = {}
    for name, every in samples(registry).items():
        if not name.endswith("_created"):
            found[name] = {label for it in every for label in it.labels}
    return found


def test_the_documentation_lists_every_metric_and_no_other(shown: dict[str, set[str]]) -> None:
    page = PAGE.read_text()
    listed = set(re.findall(r"^\| `(jetrelay_\w+)", page, re.MULTILINE))
    parts = ("_bucket", "_sum", "_count")
    histograms = {f"jetrelay_{timing.name}" for timings in TIMINGS.values() for timing in timings}
    assert listed == {name for name in shown if not name.endswith(parts)} | histograms


def test_the_documentation_tells_the_labels_of_each(shown: dict[str, set[str]]) -> None:
    page = PAGE.read_text()
    for name, labels in re.findall(r"^\| `(jetrelay_\w+)` \|([^|]*)\|", page, re.MULTILINE):
        found = shown[name] if name in shown else shown[f"{name}_sum"]
        assert set(re.findall(r"`(\w+)`", labels)) == found - {"context"}, name
