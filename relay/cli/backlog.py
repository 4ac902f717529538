"""`relay backlog`: events and messages that wait in each context."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from rich.console import Console
from rich.table import Table

from relay.cli.options import ContextOption, JsonOption, query_context, visiting_contexts
from relay.cli.tables import plain
from relay.domain.backlogs import InboxBacklog, OutboxBacklog
from relay.domain.controls import Control
from relay.ops.requests import Backlog, ListControls, ReadBacklog
from relay.settings import ContextSettings


def backlog(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Show how many events are not published and messages not processed, since when, and in which state.

    Numbers above 20,000 are estimates of the database, marked with ~. Below the table: which outbox is full, and
    what happens to its producers; which inbox is full; what is paused or limited.
    """
    held: dict[str, Sequence[Control]] = {}

    def ask(settings: ContextSettings) -> Backlog:
        answer, held[settings.name] = asyncio.run(_ask(settings))
        return answer

    with visiting_contexts(context, ask) as answers:
        if as_json:
            answers.print_json(_plain(name, found, held[name]) for name, found in answers.items())
            return
        if answers:
            console = Console()
            console.print(_table(answers))
            for name, controls in held.items():
                for control in controls:
                    console.print(f"{name}: {control}")
            for _, _, brake, full in answers.values():
                if brake.braking:
                    console.print(f"{brake} (since {plain(brake.since)})")
                for inbox in full:
                    console.print(str(inbox))
        if answers.failed:
            print(answers.unread())


async def _ask(settings: ContextSettings) -> tuple[Backlog, Sequence[Control]]:
    backlog = await query_context(settings, ReadBacklog(context=settings.name))
    return backlog, await query_context(settings, ListControls(context=settings.name))


def _plain(name: str, found: Backlog, controls: Sequence[Control]) -> dict[str, object]:
    outbox, inbox, brake, full = found
    brakes = asdict(brake) if brake.braking else None
    inboxes = [asdict(it) for it in full]
    parts = {"outbox": asdict(outbox), "inbox": asdict(inbox), "brake": brakes, "full": inboxes}
    return {"context": name, **parts, "controls": [it.row() for it in controls]}


def _table(answers: dict[str, Backlog]) -> Table:
    table = Table("context", "table", box=None, pad_edge=False)
    for heading in ("count", "oldest", "waiting", "for", "tried > 3", "dead"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, (outbox, inbox, *_) in answers.items():
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
