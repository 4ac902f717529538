"""`relay top`: what every context does, as a picture that renews itself in the terminal, the worst first."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from relay.cli.options import Answers, ContextOption, JsonOption, print_failure, query_context
from relay.cli.tables import plain
from relay.domain.disclosure import clean
from relay.domain.errors import RelayError, of_context
from relay.domain.history import ContextHistory, Of, Point, Series
from relay.ops.requests import ReadHistory
from relay.settings import ContextSettings, load_settings

#: The width of a picture that goes into a pipe, and the least of one.
WIDTH: Final = 80
_BARS: Final = "▁▂▃▄▅▆▇█"
#: Of a minute that nobody recorded.
_GAP: Final = "·"
_NAME: Final = 21
#: The columns behind the name, with their widths.
_COLUMNS: Final = (("rate/s", 7), ("p95", 6), ("failed", 6), ("waiting", 7), ("oldest", 6), ("dead", 6))
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))
_ANEW: Final = "\x1b[H\x1b[J"


def top(
    context: ContextOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, and end.")] = False,
    every: Annotated[int, typer.Option(min=1, max=3_600, help="Seconds between two pictures.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show what each outbox, subscription and type of tasks does, the worst first, until Ctrl-C.

    The figures are of the last five minutes, the bars of the last hour; a dot is a minute that no scheduler
    recorded. Into a pipe it prints one picture. Status 1 if a database does not answer.
    """
    contexts = load_settings().contexts
    chosen = contexts if context is None else {context: of_context(contexts, context)}
    if once or as_json or not sys.stdout.isatty():
        found = asyncio.run(_read(chosen))
        if as_json:
            found.print_json(it.as_dict() for it in found.values())
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
            print("\n".join(picture(found, width, None, datetime.now(UTC))))
        for name, error in found.failed.items():
            print_failure(f"context {name}", error)
        if found.failed:
            raise typer.Exit(1)
        return
    try:
        while True:
            found, size = asyncio.run(_read(chosen)), shutil.get_terminal_size()
            print(_ANEW + "\n".join(picture(found, size.columns, size.lines - 1, datetime.now(UTC))), flush=True)
            time.sleep(every)
    except KeyboardInterrupt:
        print()


async def _read(contexts: Mapping[str, ContextSettings]) -> Answers[ContextHistory]:
    """Ask all contexts at the same time."""
    found: Answers[ContextHistory] = Answers()

    async def ask(name: str, settings: ContextSettings) -> None:
        try:
            found[name] = await query_context(settings, ReadHistory(context=name))
        except RelayError as error:
            found.failed[name] = error

    await asyncio.gather(*(ask(*it) for it in contexts.items()))
    return found


def picture(found: Answers[ContextHistory], width: int, height: int | None, now: datetime) -> list[str]:
    """The lines for a terminal. ``height``: how many there may be; None without a limit."""
    width = max(width, WIDTH)
    bars = width - _NAME - sum(size + 1 for _, size in _COLUMNS) - 1
    lines = [f"relay top  {plain(now)}  {len(found)} of {len(found) + len(found.failed)} contexts answer"]
    lines += [f"{name}: {error.code}: {clean(error.message)}"[:width] for name, error in found.failed.items()]
    lines.append(
        f"{'':<{_NAME}}" + "".join(f" {name:>{size}}" for name, size in _COLUMNS) + f" {'last hour':<{bars}}"
    )
    every = [(context, it) for context, history in found.items() for it in history.series]
    every.sort(key=lambda it: (*(-part for part in it[1].trouble), it[0], it[1].of, it[1].name))
    rows = [[*_row(context, it, bars)] for context, it in every]
    left = len(rows)
    for row in rows:
        if height is not None and len(lines) + len(row) + (left > 1) > height:
            lines.append(f"and {left} more")
            break
        lines += row
        left -= 1
    if not rows and found:
        lines.append("nothing is recorded yet: a scheduler writes the history once a minute")
    return [line.rstrip() for line in lines]


def _row(context: str, series: Series, bars: int) -> Iterator[str]:
    """A line, or two where the name needs one of its own: names are never cut."""
    about = {Of.OUTBOX: "outbox", Of.TASK: f"task {series.name}"}.get(series.of, series.name)
    name = clean(f"{context} {about}")
    if len(name) > _NAME:
        yield name
        name = ""
    cells = "".join(f" {text:>{size}}" for text, (_, size) in zip(_cells(series), _COLUMNS, strict=True))
    yield f"{name:<{_NAME}}{cells} {sparkline(series.points, bars)}"


def _cells(series: Series) -> Sequence[str]:
    now = series.now
    if now is None:
        return ["?"] * len(_COLUMNS)
    times = now.handling or now.waited
    oldest = short(now.oldest_seconds) if now.waiting else "-"
    rate = f"{now.rate:.1f}" if now.rate < 100 else number(round(now.rate))
    p95 = "-" if times is None else short(times.p95)
    return [rate, p95, number(now.failed), number(now.waiting), oldest, number(now.dead)]


def sparkline(points: Sequence[Point], width: int) -> str:
    """The rates of the last minutes as bars, the newest at the right. A part that was not recorded is a dot."""
    if not points:
        return ""
    size = -(-len(points) // width)
    parts = [points[max(0, end - size) : end] for end in range(len(points), 0, -size)][::-1]
    rates = [[it.rate for it in part if it.minutes] for part in parts]
    most = max((max(part) for part in rates if part), default=0.0)
    return "".join(_GAP if not part else _bar(max(part), most) for part in rates)


def _bar(rate: float, most: float) -> str:
    return _BARS[0] if not rate else _BARS[min(len(_BARS) - 1, 1 + int(rate / most * (len(_BARS) - 2)))]


def number(count: int) -> str:
    """A count in at most five characters."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if count >= size:
            return f"{count // (1_000 if unit == 'k' else size)}{unit}"
    return str(count)


def short(seconds: float) -> str:
    """A duration in at most six characters: ``40ms``, ``1.2s``, ``3m``, ``5h``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 99.5:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    size, unit = next(it for it in _UNITS if seconds >= it[0])
    return f"{seconds / size:.0f}{unit}"
