"""`relay reconcile --producer`: events in a stream that the outbox does not know, and what to do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from relay.bootstrap import Application
from relay.cli.options import ACTING, Options, coded, confirm, operator, print_failure, print_json
from relay.cli.progress import bar
from relay.commands.adopt import DecidedOrphans
from relay.commands.orphans import OrphanPage
from relay.commands.reconcile import Stored
from relay.domain.errors import InvalidRequest, RelayError, of_context
from relay.domain.operators import Operator
from relay.settings import load_settings


class OrphanDecision(StrEnum):
    """What an operator decides about orphans."""

    ADOPT = "adopt"
    REPORT = "report"


#: The options of `relay reconcile` that belong to ``--producer``; each as (type, default).
OPTIONS: Final[Options] = {
    "producer": (
        Annotated[bool, typer.Option("--producer", help="Show events of a stream that the outbox does not know.")],
        False,
    ),
    "adopt": (
        Annotated[bool, typer.Option("--adopt", help="Write these events into the outbox, as published.")],
        False,
    ),
    "report": (
        Annotated[bool, typer.Option("--report", help="Tell the consumers of these events, by an event.")],
        False,
    ),
    "dry_run": (
        Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and decide nothing.")],
        False,
    ),
    "stream": (Annotated[str | None, typer.Option("--stream", help="Only this stream of the producer.")], None),
    "after": (Annotated[int, typer.Option(min=0, help="Begin behind this sequence of the stream.")], 0),
    "limit": (Annotated[int, typer.Option(min=1, max=10_000, help="How many of these events to show.")], 100),
    **{name: ACTING[name] for name in ("note", "actor", "yes")},
}


def asked(options: Mapping[str, Any]) -> bool:
    """Whether the producer's side is asked for. Raises InvalidRequest for an option that needs it."""
    for name in ("adopt", "report", "dry_run", "stream", "after"):
        if options[name] and not options["producer"]:
            raise InvalidRequest("belongs to --producer", field=f"--{name.replace('_', '-')}")
    if options["adopt"] and options["report"]:
        raise InvalidRequest("give one of --adopt and --report")
    return bool(options["producer"])


def run(context: str | None, options: Mapping[str, Any], *, as_json: bool) -> None:
    """Show the orphans, or adopt or report all of them."""
    look = Look(stream=options["stream"], after=options["after"], limit=options["limit"])
    if not (options["adopt"] or options["report"]):
        _show(context, look, as_json=as_json)
        return
    decision = OrphanDecision.ADOPT if options["adopt"] else OrphanDecision.REPORT
    by = operator(options["actor"], options["note"])
    counted = None
    if not (options["dry_run"] or options["yes"]):
        found, _ = _carry_out(context, look, decision, by, dry_run=True)
        what = "written into the outbox" if options["adopt"] else "reported to the consumers"
        many = sum(it.done for it in found)
        confirm(f"{many} events that the outbox does not know will be {what}. Go on?", many, yes=False)
        counted = {(it.context, it.stream): it.last for it in found}
    _decide(context, look, decision, by, counted, dry_run=options["dry_run"], as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Which part of which streams is shown."""

    stream: str | None
    after: int
    limit: int

    def check(self, contexts: list[str]) -> None:
        """Raises InvalidRequest: a sequence is that of one stream."""
        if self.after and (self.stream is None or len(contexts) > 1):
            raise InvalidRequest("say whose sequence it is", field="--after", hint="--context and --stream")


def _show(context: str | None, look: Look, *, as_json: bool) -> None:
    """Print orphans. Status 1 if there are any, or if a context cannot be read."""
    found: list[OrphanPage] = []

    async def one(application: Application, name: str) -> None:
        find = application.orphans(name)
        for stream in await find.streams():
            if look.stream in (None, stream):
                with bar(f"{name}: {stream}", "messages") as progress:
                    found.append(await find.scan(stream, look.after, look.limit, progress))

    failed = _each(context, look, one)
    if as_json:
        print_json({"streams": [_as_json(page) for page in found], **_errors(failed)})
    else:
        _print(found)
    if failed or any(page.orphans for page in found):
        raise typer.Exit(1)


#: The place of the last event that was counted, by context and stream.
Places: TypeAlias = Mapping[tuple[str, str], int]


def _carry_out(
    context: str | None,
    look: Look,
    decision: OrphanDecision,
    by: Operator,
    counted: Places | None = None,
    *,
    dry_run: bool,
) -> tuple[list[DecidedOrphans], dict[str, RelayError]]:
    """Adopt or report orphans, only those that were ``counted``; also returns the contexts that cannot be read."""
    found: list[DecidedOrphans] = []

    async def one(application: Application, name: str) -> None:
        deciding = application.deciding_orphans(name)
        for stream in await application.orphans(name).streams():
            if look.stream in (None, stream):
                act = deciding.adopt if decision is OrphanDecision.ADOPT else deciding.report
                until = None if counted is None else counted.get((name, stream), 0)
                found.append(await act(stream, by, dry_run=dry_run, after=look.after, until=until))

    return found, _each(context, look, one)


def _decide(
    context: str | None,
    look: Look,
    decision: OrphanDecision,
    by: Operator,
    counted: Places | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Adopt or report orphans. Status 1 if some stay, or if a context cannot be read."""
    found, failed = _carry_out(context, look, decision, by, counted, dry_run=dry_run)
    if as_json:
        reports = [_decided(one) for one in found]
        print_json({"decision": decision, "dry_run": dry_run, "streams": reports, **_errors(failed)})
    else:
        word = "adopted" if decision is OrphanDecision.ADOPT else "reported"
        for it in found:
            print(f"{it.context}: {it.stream}: {'would be ' if dry_run else ''}{word}: {it.done}")
    for it in found:
        for id, error in it.refused:
            print_failure(str(id), error)
    if failed or any(it.refused for it in found):
        raise typer.Exit(1)


def _each(
    context: str | None, look: Look, use: Callable[[Application, str], Awaitable[None]]
) -> dict[str, RelayError]:
    settings = load_settings()
    names = list(settings.contexts) if context is None else [of_context(settings.contexts, context).name]
    look.check(names)
    failed: dict[str, RelayError] = {}

    async def visit() -> None:
        application = Application(settings, role="cli")
        await application.start()
        try:
            for name in names:
                try:
                    await use(application, name)
                except RelayError as error:
                    failed[name] = error
                    print_failure(f"context {name}", error)
        finally:
            await application.stop()

    asyncio.run(visit())
    return failed


def _errors(failed: dict[str, RelayError]) -> dict[str, Any]:
    return {"errors": [{"context": name, "error": coded(error)} for name, error in failed.items()]}


def _as_json(page: OrphanPage) -> dict[str, Any]:
    return {
        "context": page.context,
        "stream": page.stream,
        "checked": page.checked,
        "next_after": page.next_after,
        "orphans": [_orphan(it) for it in page.orphans],
    }


def _orphan(it: Stored) -> dict[str, Any]:
    subject = it.subject.decode(errors="replace")
    return {"id": str(it.event_id), "stream_seq": it.seq, "subject": subject, "stored_at": it.at.isoformat()}


def _decided(it: DecidedOrphans) -> dict[str, Any]:
    refused = [{"id": str(id), **coded(error)} for id, error in it.refused]
    return {
        "context": it.context,
        "stream": it.stream,
        "done": it.done,
        "ids": [str(id) for id in it.ids],
        "refused": refused,
    }


def _print(found: list[OrphanPage]) -> None:
    for page in found:
        place = f"{page.context}: {page.stream}"
        if not page.orphans:
            print(f"{place}: the outbox knows all of its events")
            continue
        table = Table(box=None, pad_edge=False)
        for heading in ("seq", "event", "stored at"):
            table.add_column(heading, no_wrap=True)
        table.add_column("subject", overflow="fold")
        for it in page.orphans:
            subject = it.subject.decode(errors="replace")
            table.add_row(str(it.seq), str(it.event_id), f"{it.at:%Y-%m-%d %H:%M:%S}", subject)
        print(f"{place}: the outbox does not know these events")
        Console().print(table)
        if page.next_after is not None:
            print(f"more: --context {page.context} --stream {page.stream} --after {page.next_after}")
