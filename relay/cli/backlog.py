"""`relay backlog`: events and messages that wait in each context."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from relay.cli.options import ContextOption, JsonOption, query_context, visiting_contexts
from relay.cli.tables import View, plain, print_rows, print_text
from relay.domain.backlogs import InboxBacklog, OutboxBacklog
from relay.domain.controls import Control
from relay.domain.durations import duration
from relay.ops.requests import Backlog, ListControls, ReadBacklog
from relay.settings import ContextSettings

_COLUMNS: Final = ("context", "table", "waiting", "oldest", "delayed", "tried > 3", "dead", "all")
VIEW: Final = View(columns={name: name for name in _COLUMNS}, lead=2)


def backlog(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Show how many events are not published and messages not processed, since when, and in which state.

    A delayed event waits from its time on. Numbers above 20,000 are estimates of the database, marked with ~.
    Below the table: which outbox is full, and what happens to its producers; which inbox is full;
    what is paused or limited.
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
            print_rows(VIEW, [row for name, found in answers.items() for row in rows_of(name, found)])
            for name, controls in held.items():
                for control in controls:
                    print_text(f"{name}: {control}")
            for name, (_, _, brake, full) in answers.items():
                of = f"{name}: " if len(answers) > 1 else ""
                if brake.braking:
                    print_text(f"{of}{brake} (since {plain(brake.since)})")
                for inbox in full:
                    print_text(f"{of}{inbox}")
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


def rows_of(name: str, found: Backlog) -> Iterator[dict[str, object]]:
    """Yield the lines of a context: its outbox, its inbox."""
    outbox, inbox, *_ = found
    of_events = {"delayed": _number(outbox, outbox.delayed), "tried > 3": ""}
    of_messages = {"delayed": "", "tried > 3": _number(inbox, inbox.failed_attempts)}
    yield {"context": name, "table": "outbox", **_waiting(outbox), **of_events, **_dead(outbox)}
    yield {"context": name, "table": "inbox", **_waiting(inbox), **of_messages, **_dead(inbox)}


def _waiting(found: OutboxBacklog | InboxBacklog) -> dict[str, object]:
    age = duration(int(found.waiting_age_seconds) or found.waiting_age_seconds) if found.waiting else ""
    return {"waiting": _number(found, found.waiting), "oldest": age}


def _dead(found: OutboxBacklog | InboxBacklog) -> dict[str, object]:
    return {"dead": _number(found, found.dead), "all": _number(found, found.count)}


def _number(found: OutboxBacklog | InboxBacklog, number: int) -> str:
    return f"~{number}" if found.estimated and number else str(number)
