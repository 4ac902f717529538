"""Rows for people: a table if the terminal is wide enough for what matters, else one record below the other.

What identifies a row, its status and its reason are always shown. No id is ever cut.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from relay.domain.disclosure import clean
from relay.domain.durations import ago
from relay.domain.errors import InvalidRequest
from relay.domain.tones import tone

#: From this width on, in characters, rows are a table even if some columns must be left out.
TABLE_WIDTH: Final = 120
#: The last column is wrapped to the room that is left, but not to less than this.
_LEAST_TEXT: Final = 24
_GAP: Final = "  "
#: The columns whose values are states, and the codes of terminals for tones.
_STATES: Final = frozenset({"status", "state", "outcome"})
_HANGING: Final = 5
_COLOURS: Final = {"good": 32, "busy": 34, "warn": 33, "bad": 31}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which fields of rows are shown.

    ``columns``: the field of each column, by its heading, in the order of the table. The last one is a text of any
    length. The first ``lead`` columns are always shown, and so is the last. Of the others the last is left out
    first. ``chosen``: the user named the columns, so all of them are shown.
    """

    columns: Mapping[str, str]
    lead: int
    chosen: bool = False

    def choose(self, names: str | None, more: Iterable[str] = ()) -> View:
        """Return the view of the columns in a list such as ``id,reason``. ``more``: further fields of the rows.

        Raises InvalidRequest.
        """
        if names is None:
            return self
        known = {**{name: name for name in more}, **{key(heading): it for heading, it in self.columns.items()}}
        asked = [key(name.strip()) for name in names.split(",")]
        if unknown := [name for name in asked if name not in known]:
            raise InvalidRequest(
                f"no column is called {unknown[0][:40]!r}",
                field="--columns",
                hint=f"there are: {', '.join(known)}",
            )
        chosen = {name.replace("_", " "): known[name] for name in asked}
        return replace(self, columns=chosen, lead=len(chosen), chosen=True)


def key(heading: str) -> str:
    """Return the name of a column as it is typed: ``occurred_at``."""
    return heading.replace(" ", "_").replace("-", "_")


def columns(*names: str) -> dict[str, str]:
    """Return columns under the names of their fields."""
    return {name.replace("_", " "): name for name in names}


def width_of_output() -> int | None:
    """Return the width of the terminal in characters; None if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_rows(view: View, rows: Sequence[Mapping[str, Any]], *, wide: bool = False) -> None:
    """Print rows to fit the terminal. ``wide``, or no terminal: all columns, one line for each row."""
    width = None if wide else width_of_output()
    print("\n".join(lines(view, rows, width, datetime.now(UTC), paint=has_colours())))


def print_text(text: str) -> None:
    """Print a sentence, in lines that fit the terminal. A word is broken only if no line can hold it."""
    print("\n".join(_wrapped(clean(text), width_of_output())))


def print_hanging(state: str, text: str) -> None:
    """Print a state, and a text beside it whose further lines are indented. No word is broken that fits a line."""
    width = width_of_output()
    first, *rest = [text] if width is None else _wrapped(text, width - _HANGING)
    shown = f"{state:<{_HANGING - 1}} "
    print((painted(shown) if has_colours() else shown) + first)
    for line in rest:
        print(" " * _HANGING + line)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows of plain columns to fit the terminal. All columns matter equally."""
    view = View(columns={name: name for name in headings}, lead=len(headings))
    print_rows(view, [dict(zip(headings, row, strict=True)) for row in rows])


def has_colours() -> bool:
    """Whether the output is a terminal that shows colours, and NO_COLOR does not forbid them."""
    console = Console()
    return console.is_terminal and console.color_system is not None and not console.no_color


def painted(text: str) -> str:
    """Return the word of a state in the colour of its tone."""
    code = _COLOURS.get(tone(text.strip().partition(" ")[0].rstrip(";")))
    return text if code is None or not text.strip() else f"\x1b[{code}m{text}\x1b[0m"


def lines(
    view: View, rows: Sequence[Mapping[str, Any]], width: int | None, now: datetime, *, paint: bool = False
) -> list[str]:
    """Return the lines for a terminal of ``width`` characters, or of any width for None.

    ``paint``: states have colours.
    """
    cells = [{name: cell(row.get(field), now) for name, field in view.columns.items()} for row in rows]
    if width is None:
        return _table([*view.columns], cells, None, paint=paint)
    names = [*view.columns] if _fits([*view.columns], cells, width) else []
    if not names and not view.chosen and width >= TABLE_WIDTH:
        names = _fitting(view, cells, width)
    if not names:
        return _records(view, cells, width, paint=paint)
    if left_out := [key(name) for name in view.columns if name not in names and _holds(name, cells)]:
        note = f"no room for {', '.join(left_out)}: --wide, or --columns NAME,…"
        return [*_table(names, cells, width, paint=paint), *textwrap.wrap(note, width)]
    return _table(names, cells, width, paint=paint)


def _fitting(view: View, cells: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Return the columns of a table that fits, as many as possible. None if not even what matters fits.

    Columns without any value are left out first.
    """
    *named, last = view.columns
    names = [*named[: view.lead], *(name for name in named[view.lead :] if _holds(name, cells)), last]
    while not _fits(names, cells, width):
        if len(names) <= view.lead + 1:
            return []
        del names[-2]
    return names


def _holds(name: str, cells: Sequence[Mapping[str, str]]) -> bool:
    """Whether a column has a value in some row."""
    return any(row[name] for row in cells)


def _fits(names: Sequence[str], cells: Sequence[Mapping[str, str]], width: int) -> bool:
    *whole, last = (_width(name, cells) for name in names)
    return sum(whole) + len(_GAP) * len(whole) + min(last, _LEAST_TEXT) <= width


def _width(name: str, cells: Sequence[Mapping[str, str]]) -> int:
    return max(cell_len(name), *(cell_len(row[name]) for row in cells)) if cells else cell_len(name)


def _table(
    names: Sequence[str], cells: Sequence[Mapping[str, str]], width: int | None, *, paint: bool = False
) -> list[str]:
    *whole, last = names
    colours = _STATES & {*whole} if paint else frozenset[str]()
    widths = {name: _width(name, cells) for name in whole}
    begin = sum(widths.values()) + len(_GAP) * len(whole)
    found = []
    for number, row in enumerate(({name: name for name in names}, *cells)):
        sized = {name: set_cell_size(row[name], widths[name]) for name in whole}
        if number:
            sized |= {name: painted(sized[name]) for name in colours}
        head = "".join(sized[name] + _GAP for name in whole)
        first, *rest = _wrapped(row[last], width and width - begin)
        found += [(head + first).rstrip(), *(" " * begin + line for line in rest)]
    return found


def _records(view: View, cells: Sequence[Mapping[str, str]], width: int, *, paint: bool = False) -> list[str]:
    """Return a few lines for each row: what identifies it, then its text, then everything else."""
    names = [*view.columns]
    if view.chosen:
        lead, text, rest = [], "", names
    else:
        lead, text, rest = names[:-1][: view.lead], names[-1], names[view.lead : -1]
    found: list[str] = []
    for row in cells:
        head = _wrapped(_GAP.join(filter(None, (row[name] for name in lead))), width)
        if paint:
            words = [row[name] for name in lead if name in _STATES and row[name]]
            head = [_painted_words(line, words) for line in head]
        said = _wrapped(row[text], width - 4) if text and row[text] else []
        pairs = [f"{name}: {row[name]}" for name in rest if row[name]]
        found += [*(head if lead else ()), *(f"    {line}" for line in said)]
        found += _packed(pairs, width, "    " if lead else "")
        found += [""]
    return found[:-1]


def _painted_words(line: str, words: Sequence[str]) -> str:
    """Paint the states of a line, each where it stands alone."""
    parts = line.split(_GAP)
    return _GAP.join(painted(part) if part in words else part for part in parts)


def _packed(pairs: Sequence[str], width: int, indent: str) -> list[str]:
    """Return lines that hold as many of the texts as fit."""
    found: list[str] = []
    for pair in pairs:
        joined = f"{found[-1]}{_GAP}{pair}" if found else pair
        if found and cell_len(indent + joined) <= width:
            found[-1] = joined
        else:
            found += _wrapped(pair, width - len(indent))
    return [indent + line for line in found]


def _wrapped(text: str, width: int | None) -> list[str]:
    """Return the lines of a text. A word, such as an id, is broken only if no line can hold it."""
    if width is None or cell_len(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, 1), break_on_hyphens=False) or [""]


# --- values ---


def cell(value: object, now: datetime) -> str:
    """Write a value for a cell, in one line. After a time it says how long ago that is."""
    if isinstance(value, datetime):
        return f"{plain(value)} {ago(value, now)}"
    return clean(plain(value))


def plain(value: object) -> str:
    """Write a value as text: times to the second in UTC, nothing for None."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"
    return "" if value is None else str(value)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one thing, a line for each field that has a value, and for each member of a list or a mapping.

    Times say how long ago they are, too.
    """
    now = datetime.now(UTC)
    width = max(len(name) for name, value in fields.items() if value is not None)
    for name, value in fields.items():
        for number, one in enumerate(_members(value)):
            text = cell(one, now) if isinstance(one, datetime) else plain(one)
            print(f"{'' if number else name:<{width}}  {text}")


def _members(value: object) -> Sequence[object]:
    if isinstance(value, Mapping):
        return [f"{name}: {plain(one)}" for name, one in value.items()]
    return value if isinstance(value, list) else [] if value is None else [value]
