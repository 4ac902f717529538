"""`relay handler check`: whether a handler service keeps the handler contract."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relay.adapters.http import HttpAccess
from relay.commands.check_handler import CaseResult, SampleMessage, check_handler, plain
from relay.domain.errors import ConfigurationError, UnknownContext
from relay.domain.subject import check_token

app = typer.Typer(help="Try a handler service.", no_args_is_help=True)

#: The event without --event-type. A handler may declare it for checks: {"relay_check.v1": dict}.
_DEFAULT: Final = "relay_check"
_EVENT: Final = re.compile(r"(?P<name>.+?)(?:\.v(?P<version>[1-9][0-9]{0,8}))?")


@app.callback()
def _handler() -> None:
    """Keep `check` a command of its own, though it is the only one."""


@app.command()
def check(
    url: Annotated[str, typer.Argument(help="The address of the handler, such as http://127.0.0.1:8000/handle.")],
    event_type: Annotated[
        str, typer.Option("--event-type", help="An event that it handles: vibe_created or vibe_created.v2.")
    ] = _DEFAULT,
    payload: Annotated[
        Path | None, typer.Option(help="A file with a valid payload of this event; {} if not given.")
    ] = None,
    bad_payload: Annotated[
        Path | None,
        typer.Option(help="A file with an invalid payload. If not given, a list instead of an object."),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(envvar="HANDLER_SECRET", help="The signing_secret. If not given, requests are not signed."),
    ] = None,
    subscription: Annotated[
        str | None, typer.Option(help="Sign, and use token and certificates, as relay.toml says for CONTEXT.NAME.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="The seconds that one answer may take: the handler_timeout.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Send a handler every case of the contract and report what it answered. Status 1 if one case fails.

    Good messages take effect. So check a test deployment, not the one that customers use.
    """
    sample = _sample(event_type, payload, bad_payload)
    access = HttpAccess(secret) if subscription is None else _access(subscription)
    outcomes = asyncio.run(_run(_checked(url), sample, timedelta(seconds=timeout), access))
    if as_json:
        print(json.dumps(plain(outcomes), indent=2))
    else:
        _print(outcomes)
        if event_type == _DEFAULT and not outcomes[0].passed:
            print(f"--event-type names an event that the handler knows; it was sent {_DEFAULT}.v1")
    if not all(outcome.passed for outcome in outcomes):
        raise typer.Exit(1)


async def _run(url: str, sample: SampleMessage, patience: timedelta, access: HttpAccess) -> Sequence[CaseResult]:
    from relay.adapters.handler_probe import HttpProbe

    probe = HttpProbe(url, timeout=patience, access=access)
    try:
        return await check_handler(probe, sample, signed=access.signing_secret is not None)
    finally:
        await probe.close()


def _access(name: str) -> HttpAccess:
    from relay.credentials import http_access
    from relay.settings import load_settings

    context, _, subscription = name.partition(".")
    contexts = load_settings().contexts
    if context not in contexts or subscription not in contexts[context].subscriptions:
        raise UnknownContext(
            f"no subscription is called {name[:80]!r}", hint="write CONTEXT.NAME, as in relay.toml"
        )
    return http_access(contexts[context].subscriptions[subscription], f"contexts.{context}.subscriptions")


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("is not an http:// or https:// address", field="URL")
    return url


def _sample(event_type: str, payload: Path | None, bad_payload: Path | None) -> SampleMessage:
    match = _EVENT.fullmatch(event_type)
    name = check_token(match["name"] if match else event_type, "--event-type")
    return SampleMessage(
        event_type=name,
        event_version=int(match["version"] or 1) if match else 1,
        payload={} if payload is None else _read(payload, "--payload"),
        bad_payload=None if bad_payload is None else _read(bad_payload, "--bad-payload"),
    )


def _read(path: Path, option: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", field=option) from error
    except ValueError as error:
        raise ConfigurationError(f"is not JSON: {error}", field=option) from error


def _print(outcomes: Sequence[CaseResult]) -> None:
    table = Table("", "case", "expected", "answered", box=None, pad_edge=False)
    for outcome in outcomes:
        mark = Text("pass", "green") if outcome.passed else Text("FAIL", "bold red")
        table.add_row(mark, outcome.case, outcome.expected, Text(outcome.answered))
    Console().print(table)
    failed = sum(not outcome.passed for outcome in outcomes)
    for note in filter(None, (outcome.note for outcome in outcomes)):
        print(f"note: {note}")
    print(f"{failed} of {len(outcomes)} cases failed." if failed else f"All {len(outcomes)} cases passed.")
