"""`relay archive restore` and `replay`: put archived rows back, publish archived events again."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, Final, TypeVar

import typer

from relay.bus import Command, CommandBus, Query, QueryBus
from relay.cli.options import (
    ACTING,
    Options,
    as_id,
    confirm,
    connecting,
    one_context,
    operator,
    print_json,
    with_options,
)
from relay.cli.progress import bar
from relay.cli.rows import filter_options, filter_values
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.errors import InvalidRequest, TooMany
from relay.ops.archive import (
    ArchiveHandlers,
    BindArchived,
    CountArchived,
    ReplayArchived,
    RestoreArchived,
    forgetful,
    row_filter,
)
from relay.ops.kinds import ARCHIVED, Action
from relay.ops.kinds.shared import EXPIRES_IN
from relay.settings import ContextSettings, load_settings

Answer = TypeVar("Answer")
_SELECTING: Final[Options] = {
    "ids": (Annotated[list[str] | None, typer.Argument(help="The rows, by their ids.")], None),
    **filter_options(ARCHIVED),
    "everything": (Annotated[bool, typer.Option("--all", help="All rows in the archive.")], False),
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Count, and change nothing.")], False),
}
_FILTERS: Final = ("ids", "everything", *filter_options(ARCHIVED))
_LIMIT: Final[Options] = {
    "limit": (
        Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Refuse to act on more rows than this.")],
        100_000,
    )
}
_LONGER: Final[Options] = {
    "expires_in": (Annotated[str | None, typer.Option("--expires-in", help=f"{EXPIRES_IN.meaning}.")], None)
}
_RESTORE, _REPLAY = ARCHIVED.action("restore"), ARCHIVED.action("replay")
KindOption = Annotated[ArchiveKind, typer.Option("--kind", help="Which rows.")]


@with_options(_SELECTING | ACTING | _LIMIT)
def restore(*, kind: KindOption = ArchiveKind.OUTBOX, options: dict[str, Any]) -> None:
    """Put archived rows back."""
    _act(_RESTORE, kind, options)


@with_options(_SELECTING | _LONGER | ACTING | _LIMIT)
def replay(*, options: dict[str, Any]) -> None:
    """Publish archived events once more."""
    _act(_REPLAY, ArchiveKind.OUTBOX, options)


def _act(action: Action, kind: ArchiveKind, options: dict[str, Any]) -> None:
    wanted, by = _filter(kind, options), operator(options["actor"], options["note"])
    found = one_context(options["context"], lambda found: found.archive.place is not None)
    context, limit = found.name, options["limit"]
    wanted = asyncio.run(_run(found, "found", BindArchived(context=context, kind=kind, wanted=wanted)))
    count = asyncio.run(_run(found, "found", CountArchived(context=context, kind=kind, wanted=wanted)))
    if count and action is _REPLAY:
        for warning in forgetful(load_settings(), context):
            print(f"warning: {warning}", file=sys.stderr)
    if not options["dry_run"]:
        if count > limit:
            raise TooMany(f"{count} match and the limit is {limit}", hint="narrow it or raise --limit")
        confirm(f"{count} {kind} rows of {context} will be {action.past}. Go on?", count, yes=options["yes"])
        text = options.get("expires_in")
        longer = None if text is None else EXPIRES_IN.read(text, "--expires-in")
        replays = ReplayArchived(context=context, wanted=wanted, limit=None, expires_in=longer, by=by)
        restores = RestoreArchived(context=context, kind=kind, wanted=wanted, limit=None, by=by)
        command = replays if action is _REPLAY else restores
        count = asyncio.run(_run(found, action.past, command)) if count else 0
    if options["as_json"]:
        print_json({"context": context, "action": action.past, "dry_run": options["dry_run"], "count": count})
    else:
        print(f"{context}: {count} {kind} rows {'would be ' if options['dry_run'] else ''}{action.past}")


async def _run(context: ContextSettings, what: str, question: Query[Answer] | Command[Answer]) -> Answer:
    """Count, or act, and show how many batches were read."""
    with bar(what, "batches") as progress:
        handlers = ArchiveHandlers({context.name: context}, connecting, progress=progress)
        if isinstance(question, Query):
            return (await handlers.answer(QueryBus()).ask_async(question)).unwrap()
        return (await handlers.carry_out(CommandBus()).dispatch_async(question)).unwrap()


def _filter(kind: ArchiveKind, options: dict[str, Any]) -> RowFilter:
    """Read the filter. Raises InvalidRequest, also if there is neither a filter nor --all."""
    if not any(options[name] for name in _FILTERS):
        raise InvalidRequest("say which: ids, a filter, or --all", hint="--help lists the filters")
    if options["everything"] and any(options[name] for name in _FILTERS if name != "everything"):
        raise InvalidRequest("give --all or a filter, not both", field="--all")
    ids = [str(as_id(id, "id")) for id in options["ids"] or ()]
    return row_filter(kind, ids, filter_values(ARCHIVED, options), "--{}")
