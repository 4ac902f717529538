"""``python -m benchmarks`` runs and says what it found. No figure is checked: machines differ."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import table
from benchmarks.figures import Findings, Reference, Row
from benchmarks.measures import MEASURES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/performance.md"
DRAIN = Row(
    measure="drain", unit="events/s", runs=[900, 1_200, 1_000], reference=Reference("loop", [480, 500, 520])
)


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


def test_a_quick_run_of_each_kind_prints_a_table_and_writes_figures(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = bench("--quick", "--only", "insert", "brake", "drain", "claim", "--json", file)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["conditions"]["rounds"] == 1
    assert found["conditions"]["sync_interval"] == "2m"
    assert len(found["rows"]) == 13
    for row in found["rows"]:
        assert row["value"] > 0
        assert row["ratio"] == pytest.approx(row["value"] / row["reference"]["value"])
        assert f"\n{row['measure']}  " in done.stdout
    assert {row["reference"]["name"] for row in found["rows"]} >= {"(a) textbook", "(b) ceiling"}
    [curve] = found["curves"]
    assert [x for x, _ in curve["lines"]["claim"]] == [1_000, 5_000]


def test_an_unknown_measure_is_refused_with_the_names_of_those_there_are() -> None:
    done = bench("--only", "everything")
    assert done.returncode == 2
    assert all(f"'{name}'" in done.stderr for name in MEASURES)


# --- what is made of what was found ---


def test_the_median_round_counts_and_the_ratio_is_judged() -> None:
    assert (DRAIN.value, DRAIN.ratio) == (1_000, 2)
    assert [replace(DRAIN, at_least=limit).met for limit in (1.9, 2, 2.1)] == [True, True, False]
    assert [replace(DRAIN, at_most=limit).met for limit in (1.9, 2, 2.1)] == [False, True, True]
    assert DRAIN.met is None


def test_without_a_reference_the_value_itself_is_judged() -> None:
    latency = Row(measure="latency", unit="ms", runs=[7.5, 8.5, 8], at_most=8)
    assert (latency.ratio, latency.met, latency.reach) == (None, True, "≤ 8 ms")
    assert replace(latency, runs=[9, 9, 7]).met is False


def test_the_tables_say_whether_a_row_suffices() -> None:
    rows = [replace(DRAIN, at_least=3), Row(measure="memory", unit="MB", runs=[90.21])]
    first, second = table.terminal(rows).splitlines()[1:]
    assert first.split("  ")[0] == "drain"
    assert first.endswith("1,000 events/s  loop: 500  2.00 ×  ≥ 3 ×  NO")
    assert second.split() == ["memory", "90.2", "MB"]
    lines = table.markdown(rows, {"machine": "2 cores"}).splitlines()
    assert lines[2] == "| drain | 1,000 events/s | loop: 500 | 2.00 × | ≥ 3 × | NO |"
    assert lines[-1] == "machine: 2 cores."


def test_findings_keep_every_round() -> None:
    findings = Findings()
    findings.add(DRAIN)
    [row] = findings.as_json({})["rows"]
    assert row["runs"] == [900, 1_200, 1_000]
    assert (row["value"], row["reference"]["value"], row["ratio"], row["met"]) == (1_000, 500, 2, None)


# --- the page ---


def test_the_page_names_every_measure_and_has_the_place_for_the_table() -> None:
    page = PAGE.read_text()
    assert [name for name in MEASURES if f"`{name}`" not in page] == []
    begin, end = "<!-- python -m benchmarks --markdown: begin -->", "<!-- end -->"
    assert page.index(begin) < page.index(end)
