"""`relay queues`: the queues in Redis, their dead and delayed jobs, and actions on dead jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from relay.bus import CommandBus, QueryBus
from relay.cli.options import (
    ACTING,
    ColumnsOption,
    JsonOption,
    Options,
    WideOption,
    check_selection,
    confirm,
    connecting,
    operator,
    print_json,
    report,
    with_options,
)
from relay.cli.rows import view_of
from relay.cli.tables import View, columns, print_rows
from relay.domain.queues import JobPage, JobState, QueueView
from relay.ops.handlers import RowHandlers
from relay.ops.kinds import DEAD_JOBS, Action
from relay.ops.queues import (
    DeleteJobs,
    ListJobs,
    ListQueues,
    RequeueJobs,
    answer_for_queues,
    carry_out_for_queues,
)
from relay.settings import load_settings

app = typer.Typer(help="Queues in Redis: list, dead and delayed jobs, requeue, delete.", no_args_is_help=True)

_QUEUES: Final = View(columns=columns("queue", "waiting", "delayed", "in_flight", "dead"), lead=4)
_JOBS: Final = view_of(DEAD_JOBS, lead=3, of_context=False)
_REQUEUE, _DELETE = DEAD_JOBS.action("requeue"), DEAD_JOBS.action("delete")
_ACTING: Final[Options] = {
    "ids": (Annotated[list[str] | None, typer.Argument(help="Dead jobs, by the ids of `jobs`.")], None),
    "everything": (Annotated[bool, typer.Option("--all", help="Every dead job of the queue.")], False),
    **{name: option for name, option in ACTING.items() if name != "context"},
}
QueueArgument = Annotated[str, typer.Argument(help="A queue, by its name in `list`.")]


@app.command("list")
def list_(as_json: JsonOption = False, columns: ColumnsOption = None, wide: WideOption = False) -> None:
    """Count the waiting, delayed, fetched and dead jobs of each queue."""
    view, settings = _QUEUES.choose(columns), load_settings()

    async def ask() -> Sequence[QueueView]:
        bus = answer_for_queues(RowHandlers(settings.contexts, connecting).answer(QueryBus()), settings)
        return (await bus.ask_async(ListQueues())).unwrap()

    rows = [_row(queue) for queue in asyncio.run(ask())]
    print_json(rows) if as_json else print_rows(view, rows, wide=wide)


def _row(queue: QueueView) -> dict[str, Any]:
    fields = asdict(queue)
    return {"queue": fields.pop("name"), **fields}


@app.command("jobs", help=DEAD_JOBS.listing)
def _jobs(
    queue: QueueArgument,
    *,
    state: Annotated[JobState, typer.Option("--state", help="Dead or delayed jobs.")] = JobState.DEAD,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many to show.")] = 50,
    after: Annotated[
        str | None, typer.Option(help="Show the next page: the value that the last page printed.")
    ] = None,
    args: Annotated[bool, typer.Option("--args", help="Show their arguments too: names and ids.")] = False,
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    settings = load_settings()

    async def ask() -> JobPage:
        query = ListJobs(queue=queue, state=state, limit=limit, after=after)
        return (await answer_for_queues(QueryBus(), settings).ask_async(query)).unwrap()

    page = asyncio.run(ask())
    rows = [asdict(job) | {"args": list(job.args or ()) if args else None} for job in page.items]
    shown = _JOBS if args else _JOBS.choose(",".join(it for it in DEAD_JOBS.table if it != "args"))
    if as_json:
        print_json(rows)
    elif rows:
        print_rows(shown, rows, wide=wide)
    else:
        print(f"No {state.value} jobs in {queue}.")
    if page.next is not None and not as_json:
        print(f"{len(rows)} of {page.total}; more: --after {page.next}")


@app.command(_REQUEUE.name, help=_REQUEUE.about)
@with_options(_ACTING)
def _requeue(*, queue: QueueArgument, options: dict[str, Any]) -> None:
    _act(_REQUEUE, RequeueJobs, queue, options)


@app.command(_DELETE.name, help=_DELETE.about)
@with_options(_ACTING)
def _delete(*, queue: QueueArgument, options: dict[str, Any]) -> None:
    _act(_DELETE, DeleteJobs, queue, options)


def _act(action: Action, do: type[RequeueJobs | DeleteJobs], queue: str, options: dict[str, Any]) -> None:
    check_selection(options, ["everything"])
    settings, ids = load_settings(), options["ids"] or None
    count = 2 if ids is None else len(ids)
    which = "All dead" if ids is None else str(count)
    confirm(f"{which} jobs of {queue} will be {action.past}. Go on?", count, yes=options["yes"])
    by = operator(options["actor"], options["note"])
    bus = carry_out_for_queues(CommandBus(), settings, connecting)
    command = do(queue=queue, ids=ids, limit=options["limit"], by=by)
    report(queue, action.past, asyncio.run(bus.dispatch_async(command)).unwrap(), as_json=options["as_json"])
