"""`relay reconcile`: whether streams hold what they acknowledged, and inboxes what was delivered."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from relay import jobs
from relay.bootstrap import Application, job_broker
from relay.cli import orphans
from relay.cli.options import ContextOption, JsonOption, coded, print_failure, print_json, unread, with_options
from relay.cli.progress import bar
from relay.commands.reconcile import InboxReport, StreamReport
from relay.domain.errors import RelayError, of_context
from relay.settings import load_settings


@with_options(orphans.OPTIONS)
def reconcile(
    *,
    context: ContextOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Publish lost events again, and read missing messages again.")
    ] = False,
    as_json: JsonOption = False,
    options: dict[str, Any],
) -> None:
    """Compare every published event with its stream, and every stream with the inboxes that it feeds.

    The scheduler does this in small steps, with repair. Status 1 if something is missing and not repaired.

    With --producer the other way round: what the streams hold and the outbox does not know, because its database
    was set back (docs/how-to/moving.md).
    """
    if orphans.asked(options):
        orphans.run(context, options, as_json=as_json)
        return
    settings = load_settings()
    names = list(settings.contexts) if context is None else [of_context(settings.contexts, context).name]
    streams, inboxes, failed = asyncio.run(_compare(Application(settings, role="cli"), names, repair=repair))
    if as_json:
        reports = {"streams": [asdict(one) for one in streams], "inboxes": [asdict(one) for one in inboxes]}
        errors = [{"context": name, "error": coded(error)} for name, error in failed.items()]
        print_json({"repair": repair, **reports, "errors": errors})
    else:
        _print(streams, inboxes, repair=repair)
        if failed:
            print(unread(len(failed), len(names)))
    missing = any(one.lost or not one.exists for one in streams) or any(one.missing for one in inboxes)
    if failed or (missing and not repair):
        raise typer.Exit(1)


async def _compare(
    application: Application, names: list[str], *, repair: bool
) -> tuple[list[StreamReport], list[InboxReport], dict[str, RelayError]]:
    streams: list[StreamReport] = []
    inboxes: list[InboxReport] = []
    failed: dict[str, RelayError] = {}
    await application.start()
    try:
        for name in names:
            try:
                await _one(application, name, streams, inboxes, repair=repair)
            except RelayError as error:
                failed[name] = error
                print_failure(f"context {name}", error)
    finally:
        await application.stop()
    return streams, inboxes, failed


async def _one(
    application: Application,
    name: str,
    streams: list[StreamReport],
    inboxes: list[InboxReport],
    *,
    repair: bool,
) -> None:
    with bar(f"{name}: streams", "messages") as progress:
        streams += await application.context(name).reconcile.everything(repair=repair, progress=progress)
    for subscription in application.context(name).settings.subscriptions:
        with bar(f"{name}: inbox of {subscription}", "messages") as progress:
            found = await application.find_missing(name, subscription).run(progress=progress)
        inboxes.append(found)
        if found.missing and repair:
            await _send(application, name, subscription)


async def _send(application: Application, context: str, subscription: str) -> None:
    """Start the fleet's job that repairs this subscription: it knows how to read and handle messages."""
    work, broker = jobs.RECONCILE_INBOX.of(context, subscription), job_broker(application.settings)
    await application.gates.open(work.key, force=True, send=lambda token: broker.entry(work.message(token, None)))


def _print(streams: list[StreamReport], inboxes: list[InboxReport], *, repair: bool) -> None:
    if not streams and not inboxes:
        return
    table = Table("context", "compared", box=None, pad_edge=False)
    for heading in ("checked", "lost"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for found in streams:
        table.add_row(found.context, found.stream, str(found.checked), str(found.lost), _said(found))
    for inbox in inboxes:
        what = f"{inbox.stream} → inbox of {inbox.subscription}"
        done = "a job of the fleet reads them again" if repair and inbox.missing else ""
        table.add_row(inbox.context, what, str(inbox.checked), str(len(inbox.missing)), done)
    Console().print(table)


def _said(found: StreamReport) -> str:
    if not found.exists:
        return "the stream is missing; run: relay streams ensure"
    if not found.lost:
        return ""
    where = f"{found.tail.count} at the end, {found.middle.count} before it"
    return f"{where}; published again" if found.repaired else f"{where}; mend with --repair"
