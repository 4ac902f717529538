"""The report of a chaos run: complete, escaped, without anything from outside; and the table for the terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from chaos.checker import judge
from chaos.evidence import Evidence
from chaos.history import Fault, Sample
from chaos.judgement import NAMED
from chaos.report import Meta, clock, render, summary
from tests.unit.chaos_support import BEGIN, busy, good_run

META = Meta(42, "relay chaos run --seed 42", {"workers": "2"})
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Checks that tags nest, and collects them with their text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += f" {data}"

    def every(self, tag: str, style: str | None = None) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag and style in {None, attrs.get("class")}]


def page_of(evidence: Evidence, **options: bool) -> Page:
    return Page(render(evidence, judge(evidence, drained=True, **options), META))


def broken_run() -> Evidence:
    """Every event has its effect twice: more violations than are named, and one that carries markup."""
    evidence = good_run()
    evidence.effects *= 2
    evidence.outbox[0] = replace(evidence.outbox[0], id="<script>alert(1)</script>")
    return evidence


# --- the page -----------------------------------------------------------------------------------


def test_a_good_run_says_so_in_words() -> None:
    page = page_of(good_run())
    assert page.every("div", "verdict good")
    assert "29 events committed under 5 faults of 1 kind in 1:59" in page.text
    assert page.text.count("✓ kept") == 17
    assert "BROKEN" not in page.text


def test_a_broken_run_names_the_promises_and_the_violations() -> None:
    page = page_of(broken_run())
    assert "Promises 1, 2, 3, 7 were broken" in page.text
    assert page.text.count("✗ BROKEN") == 4
    for judgement in judge(broken_run(), drained=True):
        assert all(it in page.text for it in judgement.violations)


def test_one_broken_promise_is_in_the_singular() -> None:
    evidence = good_run()
    evidence.samples[33:103] = [replace(evidence.samples[33], at=BEGIN + at) for at in range(33, 103)]
    assert "Promise 8 was broken" in page_of(evidence).text


def test_a_run_without_evidence_proves_nothing() -> None:
    page = page_of(Evidence())
    assert "This run proves nothing" in page.text
    assert "Nothing was sampled." in page.text
    assert "No fault was injected." in page.text
    assert page.every("div", "verdict bad")


def test_a_run_that_nobody_judged_proves_nothing() -> None:
    page = Page(render(good_run(), [], META))
    assert page.every("div", "verdict bad")


def test_violations_that_are_not_named_are_counted() -> None:
    evidence = good_run()
    evidence.outbox.clear()
    judgements = judge(evidence, drained=True)
    assert judgements[1].total == 28 > NAMED
    assert "and 8 more" in Page(render(evidence, judgements, META)).text


def test_the_page_needs_nothing_from_outside_and_runs_nothing() -> None:
    page = render(good_run(), judge(good_run(), drained=True), META)
    assert not re.search(r"https?://|url\(|@import|src=", page)
    assert {"script", "link", "iframe", "img"}.isdisjoint(tag for tag, _ in Page(page).tags)


def test_every_text_is_escaped() -> None:
    evidence = broken_run()
    evidence.faults = [Fault(0, "<b>kind", "<b>target", BEGIN + 10, BEGIN + 11, "<b>note")]
    evidence.calls = [replace(call, answer="<b>answer") for call in evidence.calls]
    evidence.operations = [replace(operation, kind="<b>op") for operation in evidence.operations]
    judgements = [
        replace(found, name="<b>name", figures={"<b>figure": "<b>value"})
        for found in judge(evidence, drained=True)
    ]
    page = Page(render(evidence, judgements, Meta(42, "run <b>it & more", {"<b>fact": "<b>value"})))
    assert page.every("b") == page.every("script") == []
    for text in ("kind", "answer", "op", "name", "figure", "value", "it & more", "fact"):
        assert f"<b>{text}" in page.text
    assert "<script>alert(1)</script>" in page.text


def test_the_page_says_how_to_repeat_the_run() -> None:
    text = page_of(good_run()).text
    assert "relay chaos run --seed 42" in text
    assert re.search(r"workers\s+2", text)


def test_the_page_reads_in_the_dark_and_on_a_phone() -> None:
    page = render(good_run(), [], META)
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport" content="width=device-width' in page


def test_faults_and_recoveries_are_listed_by_kind() -> None:
    evidence = good_run()
    evidence.faults[0] = replace(evidence.faults[0], kind="flush valkey")
    text = re.sub(r"\s+", " ", page_of(evidence).text)
    assert "flush valkey 1 1 1.0 s 1.0 s kill worker 4 4 1.0 s 1.0 s all 5 5" in text


def test_the_workload_is_counted() -> None:
    text = re.sub(r"\s+", " ", page_of(good_run()).text)
    assert "Operations failed ok unknown bad 0 1 0 batch 3 4 3 one 0 0 1 rollback 1 0 0" in text
    assert "Events by plan http ordered python slow accept 4 1 1 1" in text


# --- the timeline -------------------------------------------------------------------------------


def rows_of(evidence: Evidence) -> list[str]:
    """The rows of the timeline, as text."""
    text = re.sub(r"\s+", " ", page_of(evidence).text)
    table = text.partition("Faults that began")[2].partition("Faults and recovery")[0]
    return [row.strip() for row in re.split(r" (?=\d+:[\d:]+ )", table)]


def test_every_fault_is_in_the_row_of_its_time() -> None:
    evidence = good_run()
    evidence.samples = busy(BEGIN, 60)
    evidence.faults = [Fault(1, "worker-kill", "worker-1", BEGIN + 30, BEGIN + 31)]
    rows = [row for row in rows_of(evidence) if "worker-kill worker-1" in row]
    assert [row.split()[0] for row in rows] == ["0:30"]


def test_an_outage_of_the_database_has_no_figures() -> None:
    evidence = Evidence(samples=busy(BEGIN, 60))
    evidence.samples[20:30] = [Sample(BEGIN + at, 0, None, None, None, None) for at in range(20, 30)]
    assert "0:25 - - - -" in rows_of(evidence)


def test_a_long_run_has_few_rows_and_steady_work_is_shown_at_its_rate() -> None:
    rows = rows_of(Evidence(samples=busy(BEGIN, 90_000)))
    assert 50 <= len(rows) <= 62
    assert {row.split()[1] for row in rows if row} == {"10"}


def test_a_time_is_shown_as_a_clock() -> None:
    assert [clock(at) for at in (0, 75.9, 3600 + 62)] == ["0:00", "1:15", "1:01:02"]


# --- the terminal -------------------------------------------------------------------------------


def test_the_summary_has_the_verdict_first_and_a_line_for_each_judgement() -> None:
    lines = summary(judge(good_run(), drained=True)).splitlines()
    assert lines[0] == "Every promise was kept"
    assert len(lines) == 18
    assert re.match(r"1  nothing committed is lost +kept    committed 28, published 28", lines[2])


def test_the_summary_lists_violations_under_their_promise() -> None:
    judgements = judge(broken_run(), drained=True)
    lines = summary(judgements).splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("3  "))
    assert "BROKEN" in lines[place]
    [promise] = [it for it in judgements if it.number == 3]
    assert lines[place + 1] == f"     - {promise.violations[0]}"
