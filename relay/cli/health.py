"""`relay health`: whether everything is there that our processes need."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from relay.domain.findings import Diagnosis, Examined, Finding, ProcessKind, Severity
from relay.ops.queries import Diagnose, queries
from relay.settings import Settings, load_settings

#: So many findings stand in the one line of a server in JSON.
_MAX_TOLD = 3

ForOption = Annotated[
    ProcessKind | None, typer.Option("--for", help="Only what this kind of process needs.", case_sensitive=False)
]


def health(
    *,
    process: ForOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Status 1 for warnings, too.")] = False,
) -> None:
    """Ask whether tables, streams, consumers, Redis and archives are there, reachable and up to date.

    Status 1 if not.

    Warns of versions, settings and clocks under which something may be lost. `relay doctor` looks closer.
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
            print(f"ok   {place}  {'; '.join([it.detail, *notes])}")
        for text in _told(it, Severity.ERROR):
            print(f"DOWN {place}  {text}")
        for text in _told(it, Severity.WARNING):
            print(f"warn {it.server:<{width}}            {text}")


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
    """A finding as one line, for somebody who knows which server it is about."""
    named = found.subject in (server, found.text[: len(found.subject)])
    remedy = f"; {found.remedy}" if found.remedy else ""
    return f"{'' if named else f'{found.subject}: '}{found.text}{remedy}"
