"""`relay backlog`: events and messages that wait in each context."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from rich.console import Console
from rich.table import Table

from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.pool import Source
from relay.cli.operating import ContextOption, JsonOption, ask, visiting
from relay.cli.tables import plain
from relay.domain.backlogs import InboxBacklog, OutboxBacklog

Backlog = tuple[OutboxBacklog, InboxBacklog]


def backlog(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Show how many events are not published and messages not processed: since when, and what became of them."""
    with visiting(context, lambda url: ask(url, _read)) as answers:
        if as_json:
            answers.print_json(_plain(name, found) for name, found in answers.items())
            return
        if answers:
            Console().print(_table(answers))
        if answers.failed:
            print(answers.unread())


async def _read(source: Source) -> Backlog:
    reader = PostgresBacklogReader(source)
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
    age = str(timedelta(seconds=int(found.waiting_age_seconds))) if found.waiting else ""
    return str(found.count), plain(found.oldest_at), str(found.waiting), age
