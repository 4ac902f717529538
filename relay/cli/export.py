"""`relay export`: what is held about a person."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer

from relay.cli.options import ContextOption, asking
from relay.ops.export import HeldRows
from relay.settings import Settings, load_settings


def export(
    *,
    subject: Annotated[str, typer.Argument(help="The person, as in the field that `subject` of an event names.")],
    context: ContextOption = None,
) -> None:
    """Print what is held about a person, one JSON object a line: events, messages, dead letters, tasks, archives.

    These are rows with a value that a key of the person encrypts, in plain text unless the person was forgotten or
    the master key is missing. It reads all tables and archive files once.
    """
    asyncio.run(_print(load_settings(), subject, context))


async def _print(settings: Settings, subject: str, context: str | None) -> None:
    async for row in HeldRows(settings, asking).of(subject, context):
        print(json.dumps(asdict(row), default=str, ensure_ascii=False))
