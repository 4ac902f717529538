"""`relay explain`: the life of one message, as a tree."""

from __future__ import annotations

import asyncio
import sys
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
from relay.domain.identity import check_id
from relay.domain.life import Life, Step, StepKind, UnknownId
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
    for step in life.steps:
        tree = Tree(_label(step))
        _grow(tree, step)
        console.print(tree)
    if life.cut:
        console.print("There is more. To see it, ask for an id further down.")


def _grow(tree: Tree, step: Step) -> None:
    for child in step.children:
        _grow(tree.add(_label(child)), child)


def _label(step: Step) -> Text:
    """A step in two lines: what it is and how it ended; its id and when. Then its error and its trace, if any."""
    label = Text(f"{step.kind} {step.name}", style="bold")
    if step.kind is StepKind.PUBLICATION:
        label = Text(f"stored as {step.id}", style="bold")
    plain = Text(style="not bold").append("  ").append(_ended(step), style=_STYLES.get(step.state, ""))
    label.append_text(plain)
    lines = [_when(step), *([f"error: {step.error}"] if step.error else []), *_more(step)]
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


def duration(seconds: float) -> str:
    """Seconds for people: ``12 ms``, ``3.4 s``, ``5 min``, ``2.5 h``, ``12 d``."""
    for limit, size, unit in ((1, 0.001, "ms"), (120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:.3g} d"
