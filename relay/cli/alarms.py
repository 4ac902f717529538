"""`relay alarms`: what is wrong now, by the rules that Prometheus has, too."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from relay.cli.options import ContextOption, JsonOption, asking, print_json
from relay.domain.alarms import Alarm, AlarmsNow, AlarmState, Urgency
from relay.domain.durations import ago
from relay.domain.errors import of_context
from relay.ops.alarms.prometheus import rules_file
from relay.ops.alarms.showing import alarms_json
from relay.ops.alarms.watch import Watch
from relay.settings import Settings, load_settings

_STYLES: Final = {Urgency.PAGE: "bold red", Urgency.TICKET: "yellow"}
#: What the exit status says of the worst alarm that fires.
_STATUS: Final = {None: 0, Urgency.TICKET: 1, Urgency.PAGE: 2}
#: So many alarms of one rule are shown.
_MOST: Final = 3
_INDENT: Final = " " * 8


def alarms(
    *,
    context: ContextOption = None,
    as_json: JsonOption = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print the rules as a file for Prometheus, and ask nothing.")
    ] = False,
) -> None:
    """Say what is wrong now, the worst first: since when, what to type, and where the runbook has it.

    Status 2 if an alarm of the severity page fires, 1 if only tickets do. docs/how-to/runbook.md explains each.
    """
    if prometheus:
        text = rules_file()
        if as_json:
            print_json({"rules": text})
        else:
            print(text, end="")
        return
    settings = load_settings()
    if context is not None:
        chosen = {context: of_context(settings.contexts, context)}
        settings = settings.model_copy(update={"contexts": chosen})
    found = asyncio.run(_look(settings))
    if as_json:
        print_json(alarms_json(found))
    else:
        _print(found)
    raise typer.Exit(_STATUS[found.worst])


async def _look(settings: Settings) -> AlarmsNow:
    return await Watch(settings, asking, once=True).look()


def _print(found: AlarmsNow) -> None:
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    width = min(console.width, 120) if sys.stdout.isatty() else 200
    shown, left_out = found.first(_MOST)
    for it in shown:
        console.print(entry(it, width, datetime.now(UTC)))
    for name, count in left_out.items():
        console.print(f"And {count} more of {name}.")
    counts = Counter(it.rule.urgency for it in found.firing)
    said = ", ".join(f"{counts[it]} {it}" for it in Urgency if counts[it])
    pending = len(found.alarms) - len(found.firing)
    console.print(f"{said or 'nothing fires'}{f', {pending} pending' if pending else ''}.")


def entry(it: Alarm, width: int, now: datetime) -> Text:
    """An alarm in some lines of this width."""
    state = "" if it.state is AlarmState.FIRING else f"  {it.state}"
    trend = f"  {it.trend}" if it.trend else ""
    shown = Text(f"{it.rule.urgency:<7} ", style=_STYLES[it.rule.urgency])
    shown.append(it.rule.name, style="bold").append(f"  since {ago(it.since, now)}{state}{trend}\n")
    lines = [it.text, *([f"→ {it.action}"] if it.action else []), f"docs/how-to/runbook.md#{it.rule.runbook}"]
    for line in lines:
        filled = textwrap.fill(
            line, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
        )
        shown.append(f"{filled}\n", style="default")
    return shown
