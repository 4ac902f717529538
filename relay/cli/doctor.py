"""`relay doctor`: the conditions of each promise, whether they are met, and what to change."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from relay.cli.health import ForOption, diagnose
from relay.cli.options import print_json
from relay.domain.findings import SHOWN, Diagnosis, Finding, Severity
from relay.ops.queries import Diagnose
from relay.settings import load_settings

_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.UNKNOWN: "cyan"}
_INDENT: Final = " " * 9


def doctor(
    *,
    process: ForOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Status 1 also for warnings.")] = False,
) -> None:
    """Check everything that the promises need, and say what to change. Changes nothing.

    Status 1 if something does not work or a promise does not hold. docs/reference/findings.md explains each code.
    """
    found = diagnose(load_settings(), Diagnose(process=process, close=True))
    if as_json:
        print_json({"findings": [asdict(it) for it in found.first(SHOWN)], "examined": _examined(found)})
    else:
        print_findings(found)
    if found.bad(strict=strict):
        raise typer.Exit(1)


def _examined(found: Diagnosis) -> list[dict[str, object]]:
    return [
        {"server": it.server, "healthy": it.healthy, "milliseconds": it.milliseconds, "detail": it.detail}
        for it in found.examined
    ]


def print_findings(found: Diagnosis) -> None:
    """Print what is wrong, the worst first, and how much was examined."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    width = min(console.width, 120) if sys.stdout.isatty() else 200
    for it in found.first(SHOWN):
        console.print(entry(it, width))
    if len(found.findings) > SHOWN:
        console.print(f"These are the worst {SHOWN} of {len(found.findings)}.")
    console.print(f"Examined: {', '.join(it.server for it in found.examined)}.\n{summary(found)}")


def entry(it: Finding, width: int) -> Text:
    """A finding in some lines of this width."""
    shown = Text(f"{it.severity:<8} ", style=_STYLES[it.severity])
    shown.append(it.code, style="bold").append(f"  {it.subject}\n", style="default")
    lines = [it.text, *([f"→ {it.remedy}"] if it.remedy else [])]
    for line in lines:
        filled = textwrap.fill(line, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
        shown.append(f"{filled}\n", style="default")
    return shown


def summary(found: Diagnosis) -> str:
    """How many findings there are of each severity."""
    counts = Counter(it.severity for it in found.findings)
    said = ", ".join(f"{counts[it]} {it}" for it in Severity if counts[it])
    return f"{said or 'nothing to change'}."
