"""`relay archive restore` and `replay`: put archived rows back, publish archived events again."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, Final

import typer

from relay.bus import Command, CommandBus, Query, QueryBus
from relay.cli.operating import (
    ACTING,
    Options,
    as_id,
    as_time,
    confirm,
    connecting,
    one_context,
    operator,
    print_json,
    with_options,
)
from relay.cli.progress import bar
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.errors import InvalidRequest, TooMany
from relay.domain.identity import Identity
from relay.domain.topology import is_pattern
from relay.ops.archive import ArchiveDesk, CountArchived, ReplayArchived, RestoreArchived, forgetful
from relay.settings import ContextSettings, load_settings

_SELECTING: Final[Options] = {
    "ids": (Annotated[list[str] | None, typer.Argument(help="The rows, by their ids.")], None),
    "subject": (
        Annotated[str | None, typer.Option("--subject", help="A subject, or a pattern with * and >.")],
        None,
    ),
    "type": (Annotated[str | None, typer.Option("--type", help="The type of the event or task.")], None),
    "key": (
        Annotated[str | None, typer.Option("--key", help="The partition key; a task's concurrency key.")],
        None,
    ),
    "correlation": (Annotated[str | None, typer.Option("--correlation", help="The correlation id.")], None),
    "since": (
        Annotated[str | None, typer.Option("--since", help="Only those that ended since: 400d, or a time.")],
        None,
    ),
    "until": (
        Annotated[str | None, typer.Option("--until", help="Only those that ended before: 90d, or a time.")],
        None,
    ),
    "everything": (Annotated[bool, typer.Option("--all", help="All rows in the archive.")], False),
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Count, and change nothing.")], False),
}
_FILTERS: Final = ("ids", "subject", "type", "key", "correlation", "since", "until", "everything")
_LIMIT: Final[Options] = {
    "limit": (
        Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Refuse to act on more rows than this.")],
        100_000,
    )
}
#: The word for events that were replayed.
_REPLAYED: Final = "published once more"
KindOption = Annotated[ArchiveKind, typer.Option("--kind", help="Which rows.")]


@with_options(_SELECTING | ACTING | _LIMIT)
def restore(*, kind: KindOption = ArchiveKind.OUTBOX, options: dict[str, Any]) -> None:
    """Put archived rows back into their table, as they were. Nothing is sent, and the archive keeps them.

    If the table has a row, the row stays as it is. May be repeated.
    """
    _act("restored", kind, options)


@with_options(_SELECTING | ACTING | _LIMIT)
def replay(*, options: dict[str, Any]) -> None:
    """Publish archived events once more, to every consumer of the stream. The archive keeps them.

    Consumers recognise the ids, also of messages that they have archived, until they delete these. May be
    repeated: events that were replayed since are left out.
    """
    _act(_REPLAYED, ArchiveKind.OUTBOX, options)


def _act(done: str, kind: ArchiveKind, options: dict[str, Any]) -> None:
    wanted, by = _filter(kind, options), operator(options["actor"], options["note"])
    found = one_context(options["context"], lambda found: found.archive.place is not None)
    context, limit = found.name, options["limit"]
    count = asyncio.run(_run(found, "found", CountArchived(context=context, kind=kind, wanted=wanted)))
    if count and done == _REPLAYED:
        for warning in forgetful(load_settings(), context):
            print(f"warning: {warning}", file=sys.stderr)
    if not options["dry_run"]:
        if count > limit:
            raise TooMany(f"{count} match and the limit is {limit}", hint="narrow it or raise --limit")
        confirm(f"{count} {kind} rows of {context} will be {done}. Go on?", count, yes=options["yes"])
        replays = ReplayArchived(context=context, wanted=wanted, limit=None, by=by)
        restores = RestoreArchived(context=context, kind=kind, wanted=wanted, limit=None, by=by)
        command = replays if done == _REPLAYED else restores
        count = asyncio.run(_run(found, done, command)) if count else 0
    if options["as_json"]:
        print_json({"context": context, "action": done, "dry_run": options["dry_run"], "count": count})
    else:
        print(f"{context}: {count} {kind} rows {'would be ' if options['dry_run'] else ''}{done}")


async def _run(context: ContextSettings, what: str, question: Query[int] | Command[int]) -> int:
    """Count, or act, and show how many batches were read."""
    with bar(what, "batches") as progress:
        desk = ArchiveDesk({context.name: context}, connecting, progress=progress)
        if isinstance(question, Query):
            return (await desk.answer(QueryBus()).ask_async(question)).unwrap()
        return (await desk.carry_out(CommandBus()).dispatch_async(question)).unwrap()


def _filter(kind: ArchiveKind, options: dict[str, Any]) -> RowFilter:
    """Read the filter. Raises InvalidRequest, also if there is neither a filter nor --all."""
    if not any(options[name] for name in _FILTERS):
        raise InvalidRequest("say which: ids, a filter, or --all", hint="--help lists the filters")
    if options["everything"] and any(options[name] for name in _FILTERS if name != "everything"):
        raise InvalidRequest("give --all or a filter, not both", field="--all")
    if (subject := options["subject"]) is not None and (kind is ArchiveKind.TASKS or not is_pattern(subject)):
        raise InvalidRequest("is not a pattern of subjects, or tasks have no subject", field="--subject")
    correlation = as_id(options["correlation"], "--correlation")
    return RowFilter(
        ids=frozenset(Identity.of(str(as_id(id, "id"))).uuid for id in options["ids"] or ()),
        subject=subject,
        type=options["type"],
        key=options["key"],
        correlation=None if correlation is None else Identity.of(str(correlation)).uuid,
        since=as_time(options["since"], "--since"),
        until=as_time(options["until"], "--until"),
    )
