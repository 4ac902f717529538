"""`relay backlog`: events and messages that wait in each context, QRY-050 and QRY-051."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from rich.console import Console
from rich.table import Table

from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.pool import Source
from relay.cli.operating import ContextOption, JsonOption, ask, plain, print_json, visiting
from relay.domain.backlogs import InboxBacklog, OutboxBacklog

Backlog = tuple[OutboxBacklog, InboxBacklog]


def backlog(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Show how many events are not published and messages not processed: since when, and what became of them.

    Numbers above 20,000 are estimates of the database's and marked with ~.
    """
    with visiting(context, lambda url: ask(url, _read)) as answers:
        if as_json:
            print_json([_plain(name, found) for name, found in answers.items()])
        elif answers:
            Console().print(_table(answers))


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
        table.add_row(name, "outbox", *_shown(outbox), "", _number(outbox, outbox.dead))
        table.add_row(
            "", "inbox", *_shown(inbox), _number(inbox, inbox.failed_attempts), _number(inbox, inbox.dead)
        )
    return table


def _shown(found: OutboxBacklog | InboxBacklog) -> tuple[str, str, str, str]:
    age = str(timedelta(seconds=int(found.waiting_age_seconds))) if found.waiting else ""
    return _number(found, found.count), plain(found.oldest_at), _number(found, found.waiting), age


def _number(found: OutboxBacklog | InboxBacklog, number: int) -> str:
    return f"~{number}" if found.estimated and number else str(number)
