"""The history of a context in the console, the API and the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from relay.cli.options import Answers
from relay.cli.top import WIDTH, picture, sparkline
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.errors import DatabaseUnreachable
from relay.domain.history import SPANS, ContextHistory, Of, Point, Series
from relay.ops.api.history import HistoryOut
from relay.ops.console.charts import charts_of
from tests.integration.console_pages import Browser
from tests.integration.ops_api import Api, configured, serving
from tests.integration.test_cli_operating import Shell

HERE = "/contexts/sea/history"
NOW = datetime(2026, 3, 1, 11, 0, tzinfo=UTC)
#: An hour of minutes but for six, of a service whose handler has begun to fail.
MINUTES = """
INSERT INTO history (step, kind, name, at, done, failed, waiting, oldest_seconds, dead, handling, waited)
SELECT 'minute', kind, name, date_trunc('minute', now()) - n * interval '1 minute', done, failed, waiting, 90, 0,
       '{"20": 40, "30": 20}', '{"33": 60}'
FROM generate_series(0, 59) AS n,
     (VALUES ('outbox', '', 120, 0, 0), ('subscription', 'good', 60, 0, 0), ('subscription', 'bad', 6, 9, 700),
             ('task', 'thumb', 30, 0, 3)) AS it (kind, name, done, failed, waiting)
WHERE n NOT BETWEEN 20 AND 25
"""
REQUEUED = "INSERT INTO audit_log (actor, action, ids) VALUES ('ann', 'dlq.requeue', '{1,2}')"


@pytest.fixture
def recorded(database_url: str) -> str:
    with psycopg.connect(database_url) as conn:
        conn.execute(MINUTES)
        conn.execute(REQUEUED)
    return database_url


@pytest.fixture
async def api(recorded: str, nats_server: NatsServer, valkey: ValkeyServer) -> AsyncIterator[Api]:
    async with serving(configured(recorded, nats_server.url, valkey.url)) as api:
        yield api


# --- the API ---


@pytest.mark.anyio
@pytest.mark.parametrize("span", SPANS)
async def test_the_api_tells_the_series_as_its_document_says(api: Api, span: str) -> None:
    found = HistoryOut.model_validate_json(
        json.dumps(await api.get(f"/contexts/sea/history?span={span}")), strict=False
    )
    assert (found.span, found.part_seconds) == (span, SPANS[span].part.total_seconds())
    assert [it.name for it in found.series] == ["bad", "thumb", "", "good"]
    worst = found.series[0]
    assert worst.now is not None
    assert (worst.now.failed, worst.now.waiting) == (5 * 9, 700)
    assert worst.now.handling is not None
    assert worst.now.handling.p95 > worst.now.handling.p50 > 0
    assert [(it.what, it.about, it.actor) for it in found.marks] == [("dlq.requeue", "2", "ann")]


@pytest.mark.anyio
async def test_one_series_has_times_in_each_part_and_gaps(api: Api) -> None:
    found = HistoryOut.model_validate(await api.get("/contexts/sea/history?of=subscription&name=bad"))
    [one] = found.series
    gaps = [it for it in one.points if not it.minutes]
    assert len(gaps) >= 6
    assert {(it.done, it.handling) for it in gaps} == {(0, None)}
    assert all(it.handling is not None and it.waited is not None for it in one.points if it.minutes)


@pytest.mark.anyio
async def test_what_nobody_has_recorded_is_empty_and_what_is_misspelt_is_refused(api: Api) -> None:
    assert (await api.get("/contexts/sea/history?of=subscription&name=none"))["series"] == []
    assert (await api.get("/contexts/sea/history?span=2h", 422))["error"]["field"] == "span"
    assert "nane" in json.dumps(await api.get("/contexts/sea/history?nane=x", 422))


# --- the console ---


@pytest.mark.anyio
async def test_the_console_lists_the_series_the_worst_first_and_draws_one(api: Api) -> None:
    browser = Browser(api.client)
    page = await browser.open(HERE)
    names = [re.search(r"name=(\w+)", it) for it in page.links if "of=subscription" in it]
    assert [it[1] for it in names if it] == ["bad", "good"]
    assert {f"{HERE}?span={it}" for it in SPANS} <= {*page.links}
    shown = await browser.open(f"{HERE}?of=subscription&name=bad")
    assert shown.html.count("<figure") >= 4
    # A gap ends a line, and another begins.
    assert shown.html.count('<polyline class="first"') >= 2
    assert "not recorded" in shown.text
    assert "dlq.requeue 2" in shown.text
    assert "mark-line" in shown.html


@pytest.mark.anyio
async def test_a_context_without_a_history_says_what_writes_it(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        for query in ("", "?span=90d", "?of=subscription&name=none"):
            assert "Is one running?" in (await Browser(api.client).open(f"{HERE}{query}")).text


def point(number: int, rate: float = 1.0, **values: int) -> Point:
    return Point(at=NOW + timedelta(minutes=number), rate=rate, **{"minutes": 1, **values})


@pytest.mark.parametrize(
    ("recorded", "parts"),
    [("1111", 1), ("1101", 2), ("0110", 1), ("1010", 2), ("0001", 1), ("0000", 0), ("1", 1), ("10000000001", 2)],
)
def test_a_line_has_a_part_for_each_time_between_gaps(recorded: str, parts: int) -> None:
    points = [point(n, minutes=int(it)) for n, it in enumerate(recorded)]
    charts = charts_of(Series(Of.SUBSCRIPTION, "orders", points))
    assert [len(it.lines[0].parts) for it in charts] == [parts] * len(charts)
    for part in (part for chart in charts for line in chart.lines for part in line.parts):
        corners = [tuple(map(float, it.split(","))) for it in part.split()]
        assert len(corners) >= 2
        assert all(0 <= x <= 600 and 0 <= y <= 120 for x, y in corners)


# --- the terminal ---


def answers(*series: Series) -> Answers[ContextHistory]:
    found: Answers[ContextHistory] = Answers()
    found["shop"] = ContextHistory("shop", SPANS["1h"], NOW, NOW + timedelta(hours=1), series)
    return found


@pytest.mark.parametrize("name", ["a", "orders", "x" * 21, "y" * 64, "ünïcödé", "tab\there\x1b[31m"])
@pytest.mark.parametrize("scale", [0, 1, 12_345, 9_876_543_210])
def test_a_picture_fits_into_80_columns_and_cuts_no_name(name: str, scale: int) -> None:
    values = {"done": scale, "failed": scale, "waiting": scale, "dead": scale}
    now = Point(at=NOW, minutes=5, rate=scale / 60, oldest_seconds=scale, **values)
    series = Series(Of.SUBSCRIPTION, name, [point(n, scale) for n in range(60)], now)
    lines = picture(answers(series), WIDTH, None, NOW)
    assert max(map(len, lines)) <= WIDTH
    assert not any(it in line for line in lines for it in "\t\x1b")
    assert any(it in lines[2] for it in (name, "tab"))


def test_a_picture_shows_the_worst_first_and_says_what_has_no_room() -> None:
    series = [
        Series(Of.SUBSCRIPTION, f"sub{n:02}", [point(0)], Point(at=NOW, minutes=5, failed=n)) for n in range(40)
    ]
    lines = picture(answers(*series), WIDTH, 12, NOW)
    assert len(lines) <= 12
    assert lines[2].startswith("shop sub39")
    assert lines[-1] == "and 31 more"


def test_a_context_that_does_not_answer_is_told_beside_the_others() -> None:
    found = answers(Series(Of.OUTBOX, "", [point(0)], point(0)))
    found.failed["quiet"] = DatabaseUnreachable("no answer")
    lines = picture(found, WIDTH, None, NOW)
    assert "1 of 2 contexts answer" in lines[0]
    assert lines[1].startswith("quiet: DATABASE_UNREACHABLE")


def test_bars_show_gaps_as_dots_and_silence_as_the_lowest_bar() -> None:
    points = [point(0, 10), point(1, 0), point(2, 0, minutes=0), point(3, 5)]
    assert sparkline(points, 4) == "█▁·▅"
    assert len(sparkline([point(n) for n in range(60)], 17)) <= 17


def test_top_prints_one_picture_into_a_pipe(tmp_path: Path, recorded: str) -> None:
    shell = Shell(tmp_path, recorded)
    printed = shell("top", "--context", "sea")
    lines = printed.splitlines()
    assert lines[0].startswith("relay top")
    assert lines[2].startswith("sea bad")
    assert max(map(len, lines)) <= WIDTH
    [found] = json.loads(shell("top", "--once", "--context", "sea", "--json"))
    assert [it["name"] for it in found["series"]] == ["bad", "thumb", "", "good"]
    assert shell("top", "--once", "--context", "sea", width=120).splitlines()[2].startswith("sea bad")


def test_top_ends_with_status_1_where_a_database_does_not_answer(tmp_path: Path, recorded: str) -> None:
    printed = Shell(tmp_path, recorded)("top", status=1)
    assert "sea bad" in printed
    assert "DATABASE_UNREACHABLE" in printed
