"""Dashboards, alert rules and runbook: what they ask for exists, and each alert leads to its section."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from relay.domain.alerts import SECTIONS, AlertClass
from relay.domain.backlogs import MAX_COUNTED_ROWS
from tests.pages import code
from tests.repository.deploy_support import parse

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
RUNBOOK = ROOT / "docs" / "how-to" / "runbook.md"
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}
#: Prometheus adds them to whatever it reads.
TARGET = {"job", "instance"}


def catalogue() -> dict[str, set[str]]:
    """Every series and its labels, of the reference page, which a test compares with the code."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    told = re.findall(r"^\| `(jetrelay_\w+)` \|([^|]*)\|", page, re.MULTILINE)
    metrics = {name: {"context", *re.findall(r"`(\w+)`", labels)} for name, labels in told}
    histograms = set(re.findall(r"^\| `(jetrelay_\w+)", page.partition("## Histograms")[2], re.MULTILINE))
    series = {name: labels | TARGET for name, labels in metrics.items() if name not in histograms}
    for name in histograms:
        series |= {f"{name}_{part}": metrics[name] | TARGET for part in ("sum", "count")}
        series[f"{name}_bucket"] = metrics[name] | TARGET | {"le"}
    # Prometheus' own: whether a target answers, and the alerts with the labels that they have.
    return {**series, "up": TARGET, "ALERTS": {"alertname", "alertstate", "severity", "context"}}


SERIES = catalogue()


def labels_of(node: Any) -> set[str]:
    """The labels of what an expression finds. Fails at a series or label that does not exist."""
    match node:
        case promql_parser.VectorSelector():
            assert node.name in SERIES, f"{node.name} does not exist"
            found = SERIES[node.name]
            named = {matcher.name for matcher in node.matchers.matchers}
        case promql_parser.AggregateExpr():
            found = labels_of(node.expr)
            named = set(node.modifier.labels) if node.modifier else set()
        case _:
            found, named = _of_parts(node), set()
    assert named <= found, f"{node.prettify()}: no label {named - found}"
    return named if isinstance(node, promql_parser.AggregateExpr) else found


def _of_parts(node: Any) -> set[str]:
    match node:
        case promql_parser.MatrixSelector():
            parts = [node.vector_selector]
        case promql_parser.Call():
            parts = node.args
        case promql_parser.BinaryExpr():
            parts = [node.lhs, node.rhs]
        case promql_parser.NumberLiteral():
            parts = []
        case _:
            raise AssertionError(f"not known to this test: {type(node).__name__}")
    found: set[str] = set().union(*map(labels_of, parts))
    if not isinstance(node, promql_parser.Call) or node.func.name != "histogram_quantile":
        return found
    assert "le" in found, f"{node.prettify()}: no label le"
    return found - {"le"}


def asked(expression: str) -> set[str]:
    """As `labels_of`, of a text in which Grafana's variables may stand."""
    return labels_of(promql_parser.parse(expression.replace("$__rate_interval", "1m").replace("$context", ".*")))


def targets() -> Iterator[Any]:
    for name, board in BOARDS.items():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield pytest.param(target, id=f"{name}-{panel['title']}-{target['refId']}")


@pytest.mark.parametrize("line", code("docs/how-to/metrics.md", "promql", 1).splitlines())
def test_a_query_of_the_page_asks_for_what_exists(line: str) -> None:
    assert asked(line) <= {"context", "subscription"}


def test_prometheus_of_the_page_reads_the_addresses_of_the_page() -> None:
    config = yaml.safe_load(code("docs/how-to/metrics.md", "yaml", 1))
    ours = tomllib.loads(code("docs/how-to/metrics.md", "toml", 1))["metrics"]
    read = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert read == {
        "jetrelay-scheduler": [f"127.0.0.1:{ours['scheduler']}"],
        "jetrelay-workers": [f"127.0.0.1:{ours['worker']}"],
    }
    assert [name for name in config["rule_files"] if not (PROMETHEUS / name).is_file()] == []


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


# --- dashboards ---


def test_the_dashboards_are_there() -> None:
    assert set(BOARDS) == {"overview", "delivery", "fleet", "databases"}
    assert {board["uid"] for board in BOARDS.values()} == {f"jetrelay-{name}" for name in BOARDS}


@pytest.mark.parametrize("target", list(targets()))
def test_a_panel_asks_for_metrics_and_labels_that_exist(target: dict[str, Any]) -> None:
    shown = asked(target["expr"])
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= shown


@pytest.mark.parametrize(
    "expression",
    [
        "jetrelay_no_such_metric",
        "sum by (subscription) (jetrelay_outbox_dead)",
        'jetrelay_outbox_dead{stream="x"}',
        "rate(jetrelay_handler_seconds[5m])",
        "histogram_quantile(0.9, sum by (le) (rate(jetrelay_handler_seconds_sum[5m])))",
    ],
)
def test_what_does_not_exist_is_noticed(expression: str) -> None:
    with pytest.raises(AssertionError):
        asked(expression)


def test_the_link_of_an_alert_leads_to_its_section() -> None:
    sections = {title.lower() for title in re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)}
    assert set(SECTIONS) == set(AlertClass)
    assert set(SECTIONS.values()) <= sections


def test_no_rule_waits_for_what_its_metric_cannot_reach() -> None:
    """A gauge of yes or no is never above 1, and rows are counted up to a limit."""
    groups = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    for rule in rules:
        found = re.fullmatch(r".*?(jetrelay_\w+)[^<>=]*? (>|==) ([0-9.]+)", rule["expr"].strip(), re.DOTALL)
        if found is not None and found[1] in {"jetrelay_scheduler_leading", "jetrelay_outbox_braking"}:
            assert float(found[3]) < 1, rule["alert"]
        if found is not None and not found[1].endswith("_seconds"):
            assert float(found[3]) < MAX_COUNTED_ROWS, rule["alert"]


def test_every_metric_has_a_panel() -> None:
    """But those that count what another panel shows as it is now."""
    text = " ".join(target["expr"] for board in BOARDS.values() for target in _all_targets(board))
    shown = set(re.findall(r"jetrelay_\w+", text))
    metrics = {re.sub(r"(_seconds)_(bucket|sum|count)$", r"\1", name) for name in SERIES if name.startswith("jet")}
    left_out = {name for name in metrics if not any(it.startswith(name) for it in shown)}
    assert left_out == {
        "jetrelay_brakes_total", "jetrelay_brakes_released_total", "jetrelay_outbox_oldest_age_seconds",
        "jetrelay_events_dead_total", "jetrelay_pulls_resumed_total", "jetrelay_incidents_recorded_total",
        "jetrelay_parked_keys_oldest_age_seconds", "jetrelay_tasks_delivered_total",
        "jetrelay_sequences_mended_total", "jetrelay_circuits_opened_total", "jetrelay_circuits_closed_total",
        "jetrelay_messages_let_go_total", "jetrelay_events_expired_total", "jetrelay_messages_expired_total",
        "jetrelay_tasks_expired_total",
    }  # fmt: skip


def _all_targets(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        yield from panel.get("targets", ())


@pytest.mark.parametrize("name", BOARDS)
def test_panels_say_what_they_show_have_a_unit_and_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARDS[name]["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith(".")
        if panel["type"] in {"timeseries", "stat"}:
            assert panel["fieldConfig"]["defaults"]["unit"] in {"s", "short", "cps", "percentunit"}


def test_a_series_of_seconds_is_shown_in_seconds() -> None:
    for board in BOARDS.values():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                ages = re.search(r"_(age|overdue)_seconds|histogram_quantile", target["expr"])
                assert not ages or panel["fieldConfig"]["defaults"]["unit"] == "s", panel["title"]


# --- alerts and runbook ---


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    known = asked(rule["expr"])
    told = {label for text in rule["annotations"].values() for label in re.findall(r"\$labels\.(\w+)", text)}
    assert told <= known


def sections() -> dict[str, str]:
    parts = re.split(r"^###? (.+)$", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    return {title: text for title, text in zip(parts[::2], parts[1::2], strict=True) if title.startswith("Jet")}


def test_each_alert_has_its_section_and_each_section_its_alert() -> None:
    alerts = {rule["alert"]: rule for rule in rules()}
    assert list(sections()) == list(alerts)
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook"] == f"docs/how-to/runbook.md#{name.lower()}"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_section_says_what_it_means_how_to_look_and_what_to_do(rule: dict[str, Any]) -> None:
    text = sections()[rule["alert"]]
    means, look, do = re.split(r"\*\*(?:Look|Do):\*\*", text)
    assert means.strip().startswith(f"**{rule['labels']['severity'].capitalize()}:** ")
    assert re.search(r"^- ", do, re.MULTILINE)
    assert re.search(r"```sh\nrelay ", look)


def commands() -> list[str]:
    """Every command of the runbook, in a line of its own or in a sentence."""
    found = re.findall(r"`(relay [^`]+)`|^(relay [^`\n]+)$", RUNBOOK.read_text(), re.MULTILINE)
    return sorted({" ".join("".join(parts).split()) for parts in found})


@pytest.mark.parametrize("command", commands())
def test_what_the_runbook_says_is_a_command(command: str) -> None:
    parse(command.split())


@pytest.mark.parametrize("code", sorted(set(re.findall(r"`([A-Z]+_[A-Z_]+)`", RUNBOOK.read_text()))))
def test_the_findings_that_the_runbook_names_exist(code: str) -> None:
    assert f"`{code}`" in (ROOT / "docs" / "reference" / "findings.md").read_text()


# --- how compose brings them up ---


def test_prometheus_reads_the_processes_where_they_answer() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    config = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())
    found = {it["job_name"]: it["dns_sd_configs"][0] for it in config["scrape_configs"]}
    for job, service, variable in (("scheduler", "scheduler", "SCHEDULER"), ("workers", "worker", "WORKER")):
        address = services[service]["environment"][f"RELAY_METRICS__{variable}"]
        target = found.pop(f"jetrelay-{job}")
        assert target["names"] == [service]
        assert address == f"0.0.0.0:{target['port']}"
    assert not found
    assert all((PROMETHEUS / name).is_file() for name in config["rule_files"])


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    mounts = dict(reversed(it.split(":")[:2]) for it in services["grafana"]["volumes"])
    [source] = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == "prometheus"
    [provider] = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "jetrelay.yaml").read_text())[
        "providers"
    ]
    assert mounts[provider["options"]["path"]] == "./deploy/grafana"
    assert mounts["/etc/grafana/provisioning"] == "./deploy/grafana/provisioning"
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/overview.json"
