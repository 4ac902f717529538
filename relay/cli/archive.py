"""`relay archive`: move old rows to cold storage, list its batches, verify its files."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, TypeVar

import typer

from relay.bootstrap import Application
from relay.cli.archived_rows import replay, restore
from relay.cli.options import (
    Answers,
    ColumnsOption,
    ContextOption,
    JsonOption,
    WideOption,
    operator,
    print_failure,
    query_context,
    visiting_contexts,
)
from relay.cli.progress import bar
from relay.cli.rows import view_of
from relay.cli.tables import print_rows, print_table
from relay.commands.archive import ArchiveReport, ArchiveRows, FileCheck
from relay.domain.archive import ArchiveOff, Manifest
from relay.domain.errors import RelayError
from relay.domain.operators import Operator
from relay.ops.kinds import ARCHIVED
from relay.ops.requests import TYPED, ListBatches
from relay.settings import ContextSettings, load_settings

Answer = TypeVar("Answer")

app = typer.Typer(help="Cold storage: move rows there, list, verify, restore, replay, delete.")

_SET_IT: Final = "[contexts.{}.archive] after = …, directory = …"
_VIEW: Final = view_of(ARCHIVED, lead=3)


@app.callback(invoke_without_command=True)
def archive(call: typer.Context) -> None:
    """Archive all rows that are old enough, and delete old batches, as `relay archive run`."""
    if call.invoked_subcommand is None:
        run()


@app.command()
def run(
    *,
    context: ContextOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and change nothing.")] = False,
    actor: Annotated[
        str | None, typer.Option("--actor", help="Who acts; the user of this shell if not given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Archive all rows that are old enough, and delete batches that were kept long enough.

    The scheduler does the same every hour. Status 1 if a context fails, or rows must stay because of their stream.
    """
    by = operator(actor, None)

    async def work(rows: ArchiveRows) -> ArchiveReport:
        return await rows.look() if dry_run else await _with_bar(rows, by)

    reports = _each(context, work)
    found = list(reports.values())
    if as_json:
        reports.print_json(asdict(report) for report in found)
    else:
        _print_counts(found) if dry_run else _print_done(found)
        _print_unread(reports)
    for report in found:
        for held in report.held:
            print(f"held {report.context}: {held.kind} of {held.stream}: {held.reason}", file=sys.stderr)
    if reports.failed or any(report.held for report in found):
        raise typer.Exit(1)


async def _with_bar(rows: ArchiveRows, by: Operator) -> ArchiveReport:
    """Run, and show the progress. Counts the rows only if there is a bar to show."""
    total = sum(found.rows for found in (await rows.look()).waiting) if sys.stderr.isatty() else None
    done = 0
    with bar("archived", "rows") as progress:

        def count(manifest: Manifest) -> None:
            nonlocal done
            done += manifest.rows
            progress(done, total)

        return await rows.run(by, on_batch=count)


def _print_done(reports: list[ArchiveReport]) -> None:
    for report in reports:
        for manifest in report.batches:
            print(f"{report.context}: {manifest.rows} rows to {manifest.file}")
        for manifest in report.deleted:
            print(f"{report.context}: deleted {manifest.file}, {manifest.rows} rows")
        if not report.batches:
            print(f"{report.context}: no row is old enough")


def _print_counts(reports: list[ArchiveReport]) -> None:
    rows = [asdict(found).values() for report in reports for found in report.waiting]
    if rows:
        print_table(("context", "kind", "rows", "oldest", "youngest"), [list(row) for row in rows])
    for report in reports:
        for manifest in report.deleted:
            print(f"{report.context}: {manifest.file}, {manifest.rows} rows, would be deleted")


for _action, _command in (("restore", restore), ("replay", replay)):
    app.command(_action, help=ARCHIVED.action(_action).about)(_command)


@app.command("list", help=f"{ARCHIVED.listing} Status 1 if a database does not answer.")
def _list(
    context: ContextOption = None,
    as_json: JsonOption = False,
    columns: ColumnsOption = None,
    wide: WideOption = False,
) -> None:
    view = _VIEW.choose(columns)
    with visiting_contexts(context, _batches) as answers:
        rows = [_row(manifest) for found in answers.first(answers).values() for manifest in found]
        if as_json:
            answers.print_json(rows)
            return
        if rows:
            print_rows(view, rows, wide=wide)
        elif answers:
            print(f"Nothing is archived in {', '.join(answers)}.")
        _print_unread(answers)


def _batches(context: ContextSettings) -> Sequence[Manifest]:
    return asyncio.run(query_context(context, ListBatches(context=context.name, limit=TYPED + 1)))


def _print_unread(answers: Answers[Any]) -> None:
    if answers.failed:
        print(answers.unread())


def _row(manifest: Manifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in ("context", *(it.name for it in ARCHIVED.columns))}


@app.command()
def verify(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """Read every file again and compare it with its manifest. Status 1 if one is missing or damaged."""
    answers = _each(context, _findings)
    found = [{"context": name, **asdict(one)} for name, findings in answers.items() for one in findings]
    damaged = [one for one in found if one["error"]]
    if as_json:
        answers.print_json(found)
    else:
        _print_findings(answers)
        _print_unread(answers)
    if damaged or answers.failed:
        raise typer.Exit(1)


async def _findings(rows: ArchiveRows) -> list[FileCheck]:
    found = []
    with bar("verified", "files") as progress:
        async for one in rows.verify():
            found.append(one)
            progress(len(found), None)
    return found


def _print_findings(answers: dict[str, list[FileCheck]]) -> None:
    for name, findings in answers.items():
        for found in findings:
            if found.error:
                print(f"error ARCHIVE_DAMAGED: {found.file}: {found.error}")
            elif found.left_over:
                print(f"{found.file}: no batch names it. An interrupted run left it, or a run is under way")
        sound = sum(not found.error and not found.left_over for found in findings)
        print(f"{name}: {sound} of {sum(not found.left_over for found in findings)} files are sound")


# --- one context after the other ---


def _each(context: str | None, work: Callable[[ArchiveRows], Awaitable[Answer]]) -> Answers[Answer]:
    """Run an action for each context that has an archive, or the named one. A failure is a line on stderr."""

    async def one(application: Application, name: str) -> Answer:
        rows = application.archive(name)
        if rows is None:
            raise ArchiveOff(f"{name} has no archive", hint=_SET_IT.format(name))
        return await work(rows)

    settings = load_settings()
    chosen = [name for name, own in settings.contexts.items() if own.archive.after is not None]
    if context is None and not chosen:
        print(f"no context has an archive ({_SET_IT.format('NAME')})", file=sys.stderr)
    return asyncio.run(_ask(Application(settings, role="cli"), [context] if context else chosen, one))


async def _ask(
    application: Application, names: list[str], ask: Callable[[Application, str], Awaitable[Answer]]
) -> Answers[Answer]:
    answers: Answers[Answer] = Answers()
    await application.start()
    try:
        for name in names:
            try:
                answers[name] = await ask(application, name)
            except RelayError as error:
                answers.failed[name] = error
                print_failure(f"context {name}", error)
    finally:
        await application.stop()
    return answers
