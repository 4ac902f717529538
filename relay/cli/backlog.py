"""`relay backlog`: events and messages that wait in each context, QRY-050 and QRY-051."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import typer
from rich.console import Console
from rich.table import Table

from relay.adapters.postgres.reads import open_backlog_reader
from relay.cli.contexts import ContextOption, JsonOption, visit
from relay.domain.backlogs import InboxBacklog, OutboxBacklog

Backlog = tuple[OutboxBacklog, InboxBacklog]


def backlog(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Show how many events are not published and messages not processed: since when, and what became of them."""
    answers, complete = visit(context, lambda url: asyncio.run(_read(url)))
    if as_json:
        print(json.dumps([_plain(name, found) for name, found in answers.items()], indent=2, default=_timestamp))
    elif answers:
        Console().print(_table(answers))
    if not complete:
        raise typer.Exit(1)


async def _read(url: str) -> Backlog:
    async with open_backlog_reader(url) as reader:
        return await reader.outbox_backlog(), await reader.inbox_backlog()


def _plain(name: str, found: Backlog) -> dict[str, object]:
    outbox, inbox = found
    return {"context": name, "outbox": asdict(outbox), "inbox": asdict(inbox)}


def _table(answers: dict[str, Backlog]) -> Table:
    table = Table("context", "table", box=None, pad_edge=False)
    for heading in ("count", "oldest", "waiting", "for", "tried > 3", "dead"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, (outbox, inbox) in answers.items():
        table.add_row(name, "outbox", *_shown(outbox), "", str(outbox.dead))
        table.add_row("", "inbox", *_shown(inbox), str(inbox.failed_attempts), str(inbox.dead))
    return table


def _shown(found: OutboxBacklog | InboxBacklog) -> tuple[str, str, str, str]:
    oldest = "" if found.oldest_at is None else _timestamp(found.oldest_at)
    age = str(timedelta(seconds=int(found.waiting_age_seconds))) if found.waiting else ""
    return str(found.count), oldest, str(found.waiting), age


def _timestamp(value: datetime) -> str:
    return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"
