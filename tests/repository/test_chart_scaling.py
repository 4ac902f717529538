"""What the chart has KEDA ask, and of whom."""

from __future__ import annotations

import re
from pathlib import Path

from relay.telemetry.gauges import LAG_GAUGES
from tests.repository.chart_support import CHOICES, containers, of_kind, render, settings

WORKER = "jetrelay-worker-all"


def triggers(values: str) -> list[dict[str, str]]:
    [scaled] = of_kind(render(values), "ScaledObject").values()
    return [trigger["metadata"] for trigger in scaled["spec"]["triggers"]]


def test_each_subscription_and_each_context_has_a_trigger_at_the_schedulers_service() -> None:
    """What is answered there: tests/integration/test_scale.py."""
    asked = {it["url"].removeprefix("http://jetrelay-scheduler.messages.svc:9464/scale?") for it in triggers("{}")}
    assert asked == {"context=sea", "context=vibespro", "context=sea&subscription=from_vibespro"}


def test_prometheus_is_asked_for_gauges_that_exist_and_a_missing_one_is_an_error() -> None:
    for per in ("subscription", "fleet"):
        found = triggers(f"{{worker: {{autoscaling: {{scaler: prometheus, per: {per}}}}}}}")
        named = {name for it in found for name in re.findall(r"jetrelay_(\w+)", it["query"])}
        assert named == {"lag_events", "lag_tasks", "lag_messages"}
        assert named <= {name for name, *_ in LAG_GAUGES}
        assert {it["ignoreNullValues"] for it in found} == {"false"}


def test_jetstream_is_asked_for_consumers_that_exist(tmp_path: Path) -> None:
    rendered = render()
    consumers = settings(rendered, containers(rendered)["worker"], tmp_path).contexts["sea"].subscriptions.values()
    found = [(it["stream"], it["consumer"]) for it in triggers(CHOICES["nats"])]
    assert found == [(it.stream, it.durable) for it in consumers]


def test_a_large_target_is_written_in_full() -> None:
    assert "20000000" in {it["targetValue"] for it in triggers("{worker: {autoscaling: {messages: 20000000}}}")}


def test_whoever_scales_a_pool_sets_its_replicas() -> None:
    rendered = render()
    assert "replicas" not in of_kind(rendered, "Deployment")[WORKER]["spec"]
    [scaled] = of_kind(rendered, "ScaledObject").values()
    assert scaled["spec"]["scaleTargetRef"] == {"name": WORKER}
    assert "fallback" not in scaled["spec"]
    alone = render(CHOICES["pools"])
    assert of_kind(alone, "Deployment")["jetrelay-worker-messages"]["spec"]["replicas"] == 3
    assert not of_kind(alone, "ScaledObject")
