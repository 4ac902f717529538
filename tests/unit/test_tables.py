"""Lists on terminals of different widths."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from relay.cli.tables import View, ago, columns, lines

NOW = datetime(2026, 1, 31, 3, 0, tzinfo=UTC)
ID = UUID("0198c0de-0000-7000-8000-000000000001")
REASON = "exhausted: 20 attempts, the last one: time-out: no answer within 30 s"
VIEW = View(columns=columns("context", "id", "status", "since", "type", "reason"), lead=3)


def test_a_column_without_any_value_makes_place_for_one_that_has_some() -> None:
    view = View(columns=columns("context", "id", "status", "code", "since", "type", "reason"), lead=3)
    found = lines(view, [row(code=None, type="vibe_created"), row(code=None, type="vibe_created")], 125, NOW)
    assert found[0].split() == ["context", "id", "status", "since", "type", "reason"]
    assert not any("no room" in line for line in found)


def row(**other: object) -> dict[str, Any]:
    since = NOW - timedelta(hours=3)
    return {
        "context": "sea",
        "id": ID,
        "status": "dead",
        "since": since,
        "type": "t" * 30,
        "reason": REASON,
    } | other


def test_80_columns_hold_a_record_with_all_of_it() -> None:
    assert lines(VIEW, [row(), row(context="lake")], 80, NOW) == [
        f"sea  {ID}  dead",
        f"    {REASON}",
        "    since: 2026-01-31T00:00:00Z 3h ago  type: tttttttttttttttttttttttttttttt",
        "",
        f"lake  {ID}  dead",
        f"    {REASON}",
        "    since: 2026-01-31T00:00:00Z 3h ago  type: tttttttttttttttttttttttttttttt",
    ]


def test_120_columns_hold_a_table_and_a_note_of_what_it_leaves_out() -> None:
    found = lines(VIEW, [row()], 120, NOW)
    assert found == [
        "context  id                                    status  since                        reason",
        f"sea      {ID}  dead    2026-01-31T00:00:00Z 3h ago  exhausted: 20 attempts, the last",
        f"{'':84}one: time-out: no answer within 30 s",
        "no room for type: --wide, or --columns NAME,…",
    ]


def test_200_columns_hold_all_of_it() -> None:
    heading, line = lines(VIEW, [row()], 200, NOW)
    assert heading.split() == ["context", "id", "status", "since", "type", "reason"]
    assert line.endswith(REASON)


def test_a_file_gets_one_line_for_each_row_however_long() -> None:
    _, line = lines(VIEW, [row(reason="x" * 1_000)], None, NOW)
    assert line.endswith("x" * 1_000)


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal_and_no_id_is_cut_that_fits(width: int) -> None:
    found = lines(VIEW, [row(), row(id="evt_" + "x" * 196, type="日本" * 20)], width, NOW)
    assert max(map(len, found)) <= width
    assert (str(ID) in "\n".join(found)) == (width >= 40)
    assert "dead" in "\n".join(found)


def test_a_record_whose_columns_all_lead_says_nothing_twice() -> None:
    view = View(columns=columns("context", "reason"), lead=2)
    assert lines(view, [row()], 20, NOW) == [
        "sea",
        *(f"    {it}" for it in textwrap.wrap(REASON, 16, break_on_hyphens=False)),
    ]


def test_a_value_stays_on_its_line() -> None:
    found = lines(VIEW, [row(reason="a\nb\x1b[31m")], 200, NOW)
    assert len(found) == 2
    assert "\x1b" not in found[1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s ago"), (119, "119s ago"), (120, "2m ago"), (7_199, "119m ago"), (7_200, "2h ago")),
        *((172_799, "47h ago"), (172_800, "2d ago"), (-90, "in 90s"), (-600, "in 10m")),
    ],
)
def test_a_time_says_how_long_ago_it_is(seconds: int, text: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text
