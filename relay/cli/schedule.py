"""`relay schedule`: what the schedulers run, when it ran last and runs next; run a job now, pause it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from relay.adapters.postgres.schedule import PostgresSchedule
from relay.cli.options import (
    ColumnsOption,
    ContextOption,
    JsonOption,
    OneContextOption,
    WideOption,
    ask,
    one_context,
    operator,
    print_json,
    query_context,
    run_command,
    visiting_contexts,
)
from relay.cli.rows import view_of
from relay.cli.tables import View, print_rows, print_text
from relay.domain.disclosure import stack_of
from relay.domain.durations import duration
from relay.domain.operators import Operator
from relay.domain.schedule import JobView, RunState, Schedule, how_it_went, pause_refusal
from relay.ops.kinds import JOBS
from relay.ops.requests import TYPED, PauseJob, ReadRuns, ReadSchedule, ResumeJob, RunJob

app = typer.Typer(help="Scheduled jobs: list, runs, run, pause, resume.", no_args_is_help=True)

_LOOK_INTERVAL_S: Final = 0.2
_OPEN: Final = frozenset({RunState.WAITING, RunState.STARTED})
_VIEW: Final = view_of(JOBS, lead=5)
_RUNS: Final = View(
    columns={
        "state": "state",
        "due": "scheduled_for",
        "took": "took",
        "life": "correlation_id",
        "began": "started_at",
        "attempts": "attempts",
        "worker": "who",
        "error": "error",
    },
    lead=4,
)
Name = Annotated[str, typer.Argument(help="A job, by its name in `list`.")]


@app.command("list", help=f"{JOBS.listing} Status 1 if a database does not answer.")
def _list(
    context: ContextOption = None,
    as_json: JsonOption = False,
    columns: ColumnsOption = None,
    wide: WideOption = False,
    duties: Annotated[bool, typer.Option("--duties", help="Show the duties of the relay, too.")] = False,
) -> None:
    view = _VIEW.choose(columns)
    with visiting_contexts(
        context, lambda found: asyncio.run(query_context(found, ReadSchedule(context=found.name, limit=TYPED + 1)))
    ) as found:
        parts: Any = found.first({name: it.jobs for name, it in found.items()})
        found |= {name: replace(it, jobs=parts[name]) for name, it in found.items()}
        if as_json:
            found.print_json({"context": name, **asdict(schedule)} for name, schedule in found.items())
            return
        _print(found, view, wide=wide, duties=duties)
        if found.failed:
            print(found.unread())


def _print(found: dict[str, Schedule], view: View, *, wide: bool, duties: bool) -> None:
    """Print cron jobs, and of the relay's own duties those that failed at last."""
    jobs = [(name, job) for name, schedule in found.items() for job in schedule.jobs]
    shown = [(name, job) for name, job in jobs if duties or job.error or not _is_duty(job)]
    if shown:
        print_rows(view, [{"context": name, **_row(job)} for name, job in shown], wide=wide)
    if hidden := len(jobs) - len(shown):
        print(f"{hidden} duties of the relay go well: --duties shows them")
    for name, schedule in found.items():
        leader = f"led by {schedule.leader}" if schedule.leader else "no scheduler leads"
        more = "" if schedule.jobs else "; no scheduler has listed its jobs yet"
        print_text(f"{name}: {leader}{more}")


def _is_duty(job: JobView) -> bool:
    return pause_refusal(job.schedule) is not None


@app.command("runs")
def _runs(
    name: Name,
    *,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many to show, the newest first.")] = 20,
    context: OneContextOption = None,
    as_json: JsonOption = False,
    columns: ColumnsOption = None,
    wide: WideOption = False,
) -> None:
    """List the last runs of a cron job. `relay explain ID` shows the life of one."""
    view = _RUNS.choose(columns)
    chosen = one_context(context, lambda _: True)
    found = asyncio.run(query_context(chosen, ReadRuns(context=chosen.name, name=name, limit=limit)))
    rows = [{**asdict(it), "seconds": it.seconds} for it in found]
    if as_json:
        print_json([{"context": chosen.name, **row} for row in rows])
    elif rows:
        print_rows(view, [{**row, "took": _took(row["seconds"])} for row in rows], wide=wide)
    else:
        print(f"{chosen.name}: {name} has no runs on record")


def _took(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _row(job: JobView) -> dict[str, object]:
    outcome = job.outcome or ("" if job.last_run_at is None else "failed" if job.error else "ok")
    return {
        **asdict(job),
        "outcome": outcome if job.paused_at is None else f"paused; {outcome or 'never ran'}",
        "last_run_at": job.last_run_at or "never",
        "error": stack_of(job.error or "")[0],
    }


Note = Annotated[str | None, typer.Option("--note", help="The reason; it is kept with the action.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who acts; the user of this shell if not given.")]


@app.command("pause", help=JOBS.action("pause").about)
def _pause(
    name: Name,
    note: Note = None,
    actor: Actor = None,
    context: OneContextOption = None,
    as_json: JsonOption = False,
) -> None:
    _switch(PauseJob, name, operator(actor, note), context, as_json=as_json)


@app.command("resume", help=JOBS.action("resume").about)
def _resume(
    name: Name,
    note: Note = None,
    actor: Actor = None,
    context: OneContextOption = None,
    as_json: JsonOption = False,
) -> None:
    _switch(ResumeJob, name, operator(actor, note), context, as_json=as_json)


def _switch(
    action: type[PauseJob | ResumeJob], name: str, by: Operator, context: str | None, *, as_json: bool
) -> None:
    chosen = one_context(context, lambda _: True)
    asyncio.run(run_command(chosen, action(context=chosen.name, name=name, by=by)))
    paused = action is PauseJob
    if as_json:
        print_json({"context": chosen.name, "job": name, "paused": paused})
    else:
        print(f"{chosen.name}: {name} {'is paused' if paused else 'goes on'}")


@app.command("run", help=f"{JOBS.action('run').about} Status 1 if it failed, or has not ended in time.")
def _run(
    name: Name,
    *,
    wait: Annotated[float, typer.Option(min=0, help="How many seconds to wait for the end of the run.")] = 30.0,
    note: Note = None,
    actor: Actor = None,
    context: OneContextOption = None,
    as_json: JsonOption = False,
) -> None:
    chosen = one_context(context, lambda _: True)
    by = operator(actor, note)
    requested_at = asyncio.run(run_command(chosen, RunJob(context=chosen.name, name=name, by=by)))
    ended, line = ask(chosen.database, lambda source: _wait(PostgresSchedule(source), name, requested_at, wait))
    if as_json:
        print_json({"context": chosen.name, "job": name, "ran": ended, "outcome": line})
    else:
        print(f"{chosen.name}: {name} {line}")
    if not ended:
        raise typer.Exit(1)


async def _wait(schedule: PostgresSchedule, name: str, requested_at: datetime, wait: float) -> tuple[bool, str]:
    end = asyncio.get_running_loop().time() + wait
    while True:
        if (answer := await _ended(schedule, name, requested_at)) is not None:
            return answer
        if asyncio.get_running_loop().time() >= end:
            return False, "has not ended yet. It runs as soon as a scheduler leads and a worker is free"
        await asyncio.sleep(_LOOK_INTERVAL_S)


async def _ended(schedule: PostgresSchedule, name: str, requested_at: datetime) -> tuple[bool, str] | None:
    """Whether the run went well, and its outcome. None while it has not ended."""
    run = await schedule.answering(name, requested_at)
    job = next((job for job in (await schedule.schedule()).jobs if job.name == name), None)
    went = None if job is None else how_it_went(job, run, requested_at)
    if went is None or went[0] in _OPEN:
        return None
    state, error = went
    word = "ran" if run is None and state is RunState.FINISHED else state.value
    life = "" if run is None else f"; its life: relay explain {run.correlation_id}"
    return state is not RunState.FAILED, f"{word}{f': {error}' if error else ''}{life}"
