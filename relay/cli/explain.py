"""`relay explain`: the life of one message, as a tree."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from relay.bus import Some
from relay.cli.options import print_json
from relay.cli.progress import bar
from relay.domain.durations import duration
from relay.domain.identity import check_id
from relay.domain.life import Life, Step, StepKind, UnknownId
from relay.domain.time_axis import Axis, SpanKind
from relay.ops.queries import Explain, queries
from relay.settings import load_settings

_STYLES: Final = {
    "dead": "red",
    "dead letter": "red",
    "failed": "red",
    "open": "red",
    "failing": "yellow",
    "retrying": "yellow",
    "processed": "green",
    "published": "green",
    "completed": "green",
    "finished": "green",
}


#: What a bar of the time axis is drawn with.
_MARKS: Final = {
    SpanKind.WAITING: "░",
    SpanKind.WORKING: "█",
    SpanKind.BACK_OFF: "·",
    SpanKind.UNKNOWN: "▒",
}
_BAR: Final = 40


def explain(
    *,
    id: Annotated[str, typer.Argument(help="Any id: event, message, task, incident, operation, STREAM:SEQUENCE.")],
    archive: Annotated[bool, typer.Option(help="Also search the archives.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what happened to a message, in all contexts: attempts, stream, handlers, dead letters, what followed.

    It shows no payloads. Status 1 if no context knows the id, or a context cannot be read.
    """
    check_id(id, "id")
    with bar("archives", "batches") as progress:
        found = asyncio.run(queries(load_settings(), progress).ask_async(Explain(id=id, archive=archive)))
    if not isinstance(found, Some):
        raise UnknownId(f"no context knows {id[:80]!r}", hint="relay archive list shows what is archived")
    life = found.value
    if as_json:
        print_json(asdict(life))
    else:
        _draw(life)
    for name, error in life.unread.items():
        print(f"could not read {name}: {error}", file=sys.stderr)
    if life.unread:
        raise typer.Exit(1)


def _draw(life: Life) -> None:
    console = Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 200)
    axis = Axis.over(list(_times(life.steps)))
    for step in life.steps:
        tree = Tree(_label(step, axis))
        _grow(tree, step, axis)
        console.print(tree)
    if axis is not None:
        told = ", ".join(f"{mark} {kind}" for kind, mark in _MARKS.items())
        console.print(f"|{_clock(axis.begin)} and the {duration(axis.seconds)} after it: {told}", style="dim")
    if life.cut:
        console.print("There is more. To see it, ask for an id further down.")


def _times(steps: Sequence[Step]) -> Iterator[datetime]:
    for step in steps:
        for span in step.spans:
            yield span.begin
            yield span.end
        yield from _times(step.children)


def _grow(tree: Tree, step: Step, axis: Axis | None) -> None:
    for child in step.children:
        _grow(tree.add(_label(child, axis)), child, axis)


def _bar(step: Step, axis: Axis) -> str:
    """The spans of a step on the time axis, and how long each kind was in all."""
    cells = [" "] * _BAR
    totals: dict[SpanKind, float] = {}
    for drawn in axis.bars(step.spans):
        begin = min(int(drawn.left * _BAR), _BAR - 1)
        for place in range(begin, max(begin + 1, min(_BAR, round((drawn.left + drawn.width) * _BAR)))):
            cells[place] = _MARKS[drawn.kind]
        totals[drawn.kind] = totals.get(drawn.kind, 0.0) + drawn.seconds
    told = ", ".join(f"{kind} {duration(seconds)}" for kind, seconds in totals.items())
    return f"|{''.join(cells)}| {told}"


def _label(step: Step, axis: Axis | None) -> Text:
    """A step in two lines: what it is and how it ended; its id and when. Then times, error and trace, if any."""
    label = Text(f"{step.kind} {step.name}", style="bold")
    if step.kind is StepKind.PUBLICATION:
        label = Text(f"stored as {step.id}", style="bold")
    plain = Text(style="not bold").append("  ").append(_ended(step), style=_STYLES.get(step.state, ""))
    label.append_text(plain)
    timed = [_bar(step, axis)] if axis is not None and step.spans else []
    lines = [_when(step), *timed, *([f"error: {step.error}"] if step.error else []), *_more(step)]
    for line in lines:
        label.append(f"\n{line}", style="not bold")
    return label


def _ended(step: Step) -> str:
    if step.kind is StepKind.PUBLICATION:
        return f"generation {step.details['generation']}" if step.details["generation"] else ""
    if step.kind is StepKind.ACTION:
        note = step.details["note"]
        return f"by {step.details['by']}{f': {note}' if note else ''}"
    tried = f", {step.attempts} attempt{'s' if step.attempts != 1 else ''}" if step.attempts else ""
    took = f", took {duration(step.took)}" if step.took is not None else ""
    return f"{step.state}{tried}{took}{' (archived)' if step.archived else ''}"


def _when(step: Step) -> str:
    at = "time unknown" if step.at is None else _clock(step.at)
    after = f"  +{duration(step.after)}" if step.after is not None and step.after >= 0 else ""
    place = "" if step.kind in (StepKind.PUBLICATION, StepKind.ACTION) else f"  {step.context}  {step.id}"
    return f"{at}{after}{place}"


def _more(step: Step) -> list[str]:
    following = step.details.get("next_attempt")
    trace = [f"trace {step.trace_id}"] if step.trace_id else []
    return [*trace, *([f"next attempt {_clock(following)}"] if following else [])]


def _clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%F %T.") + f"{at.microsecond // 1000:03d}Z"
