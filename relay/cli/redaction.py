"""What `relay forget --scan` and `relay export --scan` share: which values, where, and how it went."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from relay.adapters.jetstream.connection import NatsConnection
from relay.cli.options import Options, connecting, operator, print_json
from relay.credentials import nats_options
from relay.domain.errors import ConfigurationError, InvalidRequest
from relay.domain.personal import PersonalFields
from relay.domain.redaction import REDACTED, Redaction
from relay.events import Registration, registration_of
from relay.ops.redaction import Certificate, Findings, PlaceName, Redactor
from relay.settings import Settings, load_settings

#: The options that both have; each as (type, default).
OPTIONS: Final[Options] = {
    "scan": (
        Annotated[bool, typer.Option("--scan", help="Look for values everywhere, declared personal or not.")],
        False,
    ),
    "value": (
        Annotated[
            list[str] | None,
            typer.Option("--value", help="With --scan: what to look for; may be repeated; - reads lines."),
        ],
        None,
    ),
    "path": (
        Annotated[
            list[str] | None,
            typer.Option("--path", help="With --scan: of payloads only this field: customer.email"),
        ],
        None,
    ),
    "type": (
        Annotated[str | None, typer.Option("--type", help="With --scan: only this type of events or tasks.")],
        None,
    ),
    "event": (
        Annotated[
            str | None,
            typer.Option(
                "--event",
                help="With --scan: instead of --path and --type. The personal fields of an event: its class, as "
                "shop.events:OrderPlaced, or its type in relay.toml.",
            ),
        ],
        None,
    ),
}


def wanted(options: Mapping[str, Any], subject: str | None) -> Redaction | None:
    """What to look for; None if a person is named instead. Raises InvalidRequest."""
    values = [
        line for it in options["value"] or () for line in (sys.stdin.read().splitlines() if it == "-" else [it])
    ]
    if options["scan"]:
        if subject is not None:
            raise InvalidRequest("name a person or --scan, not both", hint="--scan looks for each --value")
        paths, kind = tuple(options["path"] or ()), options["type"]
        if options["event"] is not None:
            if paths or kind is not None:
                raise InvalidRequest(
                    "says both fields and type", field="--event", hint="without --path and --type"
                )
            kind, fields = _declared(options["event"])
            paths = (fields.subject, *fields.fields)
        return Redaction(tuple(dict.fromkeys(values)), paths, kind)
    if values or options["path"] or options["type"] or options["event"]:
        raise InvalidRequest("belongs to --scan", field="--value")
    if subject is None:
        raise InvalidRequest("name a person, or look for values", hint="--scan --value ann@example.org")
    return None


def _declared(event: str) -> tuple[str, PersonalFields]:
    """The type and personal fields of a class, or of a type in relay.toml. Raises InvalidRequest."""
    module, colon, name = event.partition(":")
    if colon:
        found = _class(module, name)
        if found is None or found.personal is None:
            raise InvalidRequest(f"{event[:80]} declares no personal fields", field="--event")
        return found.event_type, found.personal
    for context in load_settings().contexts.values():
        if (declared := context.personal.get(event)) is not None:
            return event, declared.value()
    raise InvalidRequest(
        f"relay.toml declares no personal fields of {event[:80]!r}",
        field="--event",
        hint="a class is named as shop.events:OrderPlaced",
    )


def _class(module: str, name: str) -> Registration | None:
    sys.path.append(str(Path.cwd()))  # as workers do
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(f"there is no module {module!r}", hint="is it on PYTHONPATH?") from None
    return registration_of(found) if isinstance(found, type) else None


@asynccontextmanager
async def _redactor(settings: Settings, found: Redaction, context: str | None) -> AsyncIterator[Redactor]:
    nats = NatsConnection(settings.nats_url.get_secret_value(), name="relay-cli", **nats_options(settings))
    try:
        yield Redactor(settings, connecting, nats, found, context)
    finally:
        await nats.close()


# --- to look ---


async def print_held(found: Redaction, context: str | None) -> None:
    """Print what is held, one JSON object a line. Status 1 if something could not be looked at."""
    findings = Findings()
    async with _redactor(load_settings(), found, context) as redactor:
        async for it in redactor.held(findings):
            print(json.dumps(asdict(it), ensure_ascii=False))
    _end(findings.left)


async def _look(found: Redaction, context: str | None) -> Findings:
    async with _redactor(load_settings(), found, context) as redactor:
        return await redactor.look()


# --- to redact ---


def forget(found: Redaction, context: str | None, options: Mapping[str, Any], *, as_json: bool) -> None:
    """Count what would be redacted, ask, redact it, and print a certificate. Status 1 if something is left."""
    by = operator(options["actor"], options["note"])
    if options["dry_run"] or not options["yes"]:
        findings = asyncio.run(_look(found, context))
        if options["dry_run"] and as_json:
            print_json({"found": _rows(findings.counts), "left": _rows(findings.left)})
        else:
            _print_counts(findings.counts, sys.stdout if options["dry_run"] else sys.stderr)
        if options["dry_run"]:
            _end(findings.left)
            return
        typer.confirm(f"Redact these {findings.total} for ever?", abort=True, err=True)
    done = asyncio.run(_redact(found, context, by))
    if as_json:
        told = asdict(done) | {name: _rows(getattr(done, name)) for name in ("counts", "left")}
        earlier = [{"at": at, "by": actor} for at, actor in done.earlier]
        print_json(told | {"complete": done.complete, "earlier": earlier})
    else:
        _print(done)
    _end(done.left)


async def _redact(found: Redaction, context: str | None, by: Any) -> Certificate:
    async with _redactor(load_settings(), found, context) as redactor:
        return await redactor.redact(by)


def _rows(found: Mapping[PlaceName, Any]) -> list[dict[str, Any]]:
    name = "rows" if all(isinstance(it, int) for it in found.values()) else "reason"
    return [{"context": context or None, "place": place, name: it} for (context, place), it in found.items()]


def _print(done: Certificate) -> None:
    when = done.at.astimezone(UTC).isoformat(timespec="seconds")
    print(f"Certificate {done.id}\nredacted on {when} by {done.by}; {REDACTED} stands for what was there")
    _print_counts(done.counts, sys.stdout)
    for stream, count in done.again.items():
        print(f"{stream}: {count} published again without it, for consumers that had not had them")
    for at, actor in done.earlier:
        print(f"the same was redacted on {at.astimezone(UTC).isoformat(timespec='seconds')} by {actor}")


def _print_counts(counts: Mapping[PlaceName, int], file: Any) -> None:
    for (context, place), count in counts.items():
        print(f"{context}: {place}: {count}", file=file)
    if not counts:
        print("nothing was found", file=file)


def _end(left: Mapping[PlaceName, str]) -> None:
    for (context, place), why in left.items():
        print(f"left {context}{': ' if context else ''}{place}: {why}", file=sys.stderr)
    if left:
        raise typer.Exit(1)
