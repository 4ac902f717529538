"""Lists on terminals of different widths."""

from __future__ import annotations

import re
import textwrap
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from relay.cli.backlog import VIEW as VIEW_OF_BACKLOGS
from relay.cli.backlog import rows_of
from relay.cli.tables import View, columns, lines
from relay.domain.backlogs import Brake, InboxBacklog, OutboxBacklog
from relay.domain.durations import ago

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
        "    since: 2026-01-31T00:00:00Z 3 h ago  type: tttttttttttttttttttttttttttttt",
        "",
        f"lake  {ID}  dead",
        f"    {REASON}",
        "    since: 2026-01-31T00:00:00Z 3 h ago  type: tttttttttttttttttttttttttttttt",
    ]


def test_120_columns_hold_a_table_and_a_note_of_what_it_leaves_out() -> None:
    found = lines(VIEW, [row()], 120, NOW)
    assert found == [
        "context  id                                    status  since                         reason",
        f"sea      {ID}  dead    2026-01-31T00:00:00Z 3 h ago  exhausted: 20 attempts, the last",
        f"{'':85}one: time-out: no answer within 30",
        f"{'':85}s",
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
        *((0, "now"), (119, "119 s ago"), (120, "2 min ago"), (7_199, "119 min ago"), (7_200, "2 h ago")),
        *((172_799, "47 h ago"), (172_800, "2 d ago"), (-90, "in 90 s"), (-600, "in 10 min")),
    ],
)
def test_a_time_says_how_long_ago_it_is(seconds: int, text: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("length", [4, 20, 33, 64])
def test_backlogs_of_contexts_are_told_apart_at_any_width(width: int, length: int) -> None:
    names = [f"{'shop' * length}"[: length - 1] + end for end in "xyz"]
    backlog = (OutboxBacklog(7, NOW, 5, 90.0, 1, delayed=1), InboxBacklog(3, NOW, 2, 4_000.0, 1, 1), Brake(), ())
    found = lines(VIEW_OF_BACKLOGS, [row for it in names for row in rows_of(it, backlog)], width, NOW)
    whole = "".join(found)
    for name in names:
        assert whole.count(name) == 2
    assert max(map(len, found)) <= max(width, length)
    assert whole.count("90 s") == 3


def test_states_have_colours_that_take_no_room() -> None:
    for width in (80, 120, 200):
        plain, coloured = (lines(VIEW, [row(), row(status="open")], width, NOW, paint=it) for it in (False, True))
        assert [re.sub(r"\x1b\[\d*m", "", it) for it in coloured] == plain
        assert sum("\x1b[31mdead" in it for it in coloured) == 1
