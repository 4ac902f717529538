"""`relay health`: whether everything exists that our processes need."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from relay.cli.tables import print_hanging
from relay.domain.findings import Diagnosis, Examined, Finding, ProcessKind, Severity
from relay.ops.queries import Diagnose, queries
from relay.settings import Settings, load_settings

#: How many findings of a server its line in JSON has.
_MAX_TOLD: Final = 3

ForOption = Annotated[
    ProcessKind | None,
    typer.Option("--for", help="Check only what this kind of process needs.", case_sensitive=False),
]


def health(
    *,
    process: ForOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Status 1 also for warnings.")] = False,
) -> None:
    """Check whether tables, streams, consumers, Redis and archives exist, answer and are up to date.

    Status 1 if not.

    It warns of versions, settings and clocks with which something may be lost. `relay doctor` checks more.
    """
    found = diagnose(load_settings(), Diagnose(process=process))
    if as_json:
        print(json.dumps([_as_json(examined) for examined in found.examined], indent=2))
    else:
        _print(found)
    if found.bad(strict=strict):
        raise typer.Exit(1)


def diagnose(settings: Settings, query: Diagnose) -> Diagnosis:
    """Ask the bus. Never raises for a server that does not answer."""
    return asyncio.run(queries(settings).ask_async(query)).unwrap()


def _print(found: Diagnosis) -> None:
    width = max((len(it.server) for it in found.examined), default=0)
    for it in found.examined:
        place = f"{it.server:<{width}} {it.milliseconds:>6.0f} ms"
        if it.healthy:
            notes = _told(it, Severity.UNKNOWN)
            print_hanging("ok", f"{place}  {'; '.join([it.detail, *notes])}")
        for text in _told(it, Severity.ERROR):
            print_hanging("DOWN", f"{place}  {text}")
        for text in _told(it, Severity.WARNING):
            print_hanging("warn", f"{it.server:<{width}}            {text}")


def _as_json(it: Examined) -> dict[str, Any]:
    errors = _told(it, Severity.ERROR)
    more = [f"and {len(errors) - _MAX_TOLD} more"] if len(errors) > _MAX_TOLD else []
    notes = [*errors[:_MAX_TOLD], *more] if errors else [it.detail, *_told(it, Severity.UNKNOWN)]
    return {
        "server": it.server,
        "healthy": it.healthy,
        "milliseconds": it.milliseconds,
        "detail": "; ".join(notes),
        "warnings": _told(it, Severity.WARNING),
        "findings": [asdict(found) for found in it.findings],
    }


def _told(it: Examined, severity: Severity) -> list[str]:
    return [sentence(found, it.server) for found in it.findings if found.severity is severity]


def sentence(found: Finding, server: str) -> str:
    """A finding as one line, for a reader who knows the server."""
    named = found.subject in (server, found.text[: len(found.subject)])
    remedy = f"; {found.remedy}" if found.remedy else ""
    return f"{'' if named else f'{found.subject}: '}{found.text}{remedy}"
