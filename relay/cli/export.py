"""`relay export`: what is held about a person."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from relay.cli import redaction
from relay.cli.options import ContextOption, asking, with_options
from relay.ops.export import HeldRows
from relay.settings import Settings, load_settings


@with_options(redaction.OPTIONS)
def export(
    *,
    subject: Annotated[
        str | None, typer.Argument(help="The person, as in the field that `subject` of an event names.")
    ] = None,
    context: ContextOption = None,
    options: dict[str, Any],
) -> None:
    """Print what is held about a person, one JSON object a line: events, messages, dead letters, tasks, archives.

    These are rows with a value that a key of the person encrypts, in plain text unless the person was forgotten or
    the master key is missing. It reads all tables and archive files once. With --scan: what has a value, declared
    personal or not, in tables, streams and archives.
    """
    if (found := redaction.wanted(options, subject)) is not None:
        asyncio.run(redaction.print_held(found, context))
        return
    assert subject is not None
    asyncio.run(_print(load_settings(), subject, context))


async def _print(settings: Settings, subject: str, context: str | None) -> None:
    async for row in HeldRows(settings, asking).of(subject, context):
        print(json.dumps(asdict(row), default=str, ensure_ascii=False))
