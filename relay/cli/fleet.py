"""`relay fleet`: as many worker processes on this host as the load needs, and the members of all hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from relay.cli.options import JsonOption, Options, print_json, with_options
from relay.cli.tables import View, print_rows, print_text
from relay.domain.durations import duration
from relay.domain.members import Member, Seen, State, Usage
from relay.domain.running import FleetNow, RunningRow

app = typer.Typer(help="Worker processes that follow the load: run, status.", invoke_without_command=True)


#: The options of a supervisor, by the names of its rules; each as (type, default).
_RULES: Final[Options] = {
    "least": (Annotated[int, typer.Option("--min", help="The fewest workers of this host.")], 1),
    "most": (
        Annotated[int | None, typer.Option("--max", help="The most workers of this host; --min if not given.")],
        None,
    ),
    "rows": (Annotated[int, typer.Option(help="Add workers while more rows than this are due.")], 10_000),
    "age_s": (
        Annotated[
            float, typer.Option("--age", help="Add workers while a row has been due for more seconds than this.")
        ],
        30.0,
    ),
    "grow_after_s": (
        Annotated[
            float,
            typer.Option(
                "--grow-after", help="For how many seconds the load must be high before workers are added."
            ),
        ],
        10.0,
    ),
    "shrink_after_s": (
        Annotated[
            float,
            typer.Option("--shrink-after", help="For how many seconds the load must be low before a worker ends."),
        ],
        60.0,
    ),
    "pause_s": (Annotated[float, typer.Option("--pause", help="The fewest seconds between two changes.")], 15.0),
}
_DRAIN = "The seconds that a worker has to finish. Then it is killed."


@app.callback()
@with_options(_RULES)
def fleet(
    context: typer.Context,
    *,
    threads: Annotated[int, typer.Option(help="Threads of each worker, for handlers.")] = 8,
    drain: Annotated[float, typer.Option(help=_DRAIN)] = 30,
    every: Annotated[float, typer.Option(help="The seconds between two readings of the load.")] = 5,
    options: dict[str, Any],
) -> None:
    """Run worker processes on this host, restart those that crash, and follow the load.

    After SIGTERM or Ctrl-C they finish what they have begun. SIGHUP replaces them one after another.
    """
    if context.invoked_subcommand is not None:
        return
    from relay.domain.scaling import ScalingRules
    from relay.fleet.supervisor import FleetOptions, supervise
    from relay.settings import load_settings
    from relay.telemetry.logs import configure

    most = options["least"] if options["most"] is None else options["most"]
    rules = ScalingRules(**{**options, "most": most})
    fleet_options = FleetOptions(threads=threads, drain_s=drain, every_s=every)
    settings = load_settings()
    configure(settings.log_level, settings.log_format)
    if status := supervise(settings, rules, fleet_options):
        raise typer.Exit(status)


@app.command()
def status(as_json: JsonOption = False) -> None:
    """List the members of all hosts: workers and supervisors, what each runs now, and who leads each context.

    What runs is red if it has had more time than its handler may take.
    """
    fleet = asyncio.run(_fleet())
    if as_json:
        print_json([_plain(it, fleet) for it in fleet.members])
        return
    if fleet.members:
        _print(fleet)
    else:
        print("no heartbeat of a worker or supervisor for ten minutes")
    for context, why in fleet.unread.items():
        print_text(f"what runs in {context} is not known: {why}")
    for context, leader in fleet.leaders.items():
        print_text(f"{context}: led by {leader}" if leader else f"{context}: no scheduler leads")


async def _fleet() -> FleetNow:
    from relay.bus import QueryBus
    from relay.cli.options import query_context
    from relay.ops.fleet import read_fleet
    from relay.ops.requests import ReadRunning, RunsNow
    from relay.ops.servers import ListMembers, answer_for_servers
    from relay.settings import load_settings

    settings = load_settings()

    async def ask(context: str) -> RunsNow:
        return await query_context(settings.contexts[context], ReadRunning(context=context))

    members = (await answer_for_servers(QueryBus(), settings).ask_async(ListMembers())).unwrap()
    return await read_fleet(members, settings.contexts, ask)


def _plain(seen: Seen, fleet: FleetNow) -> Mapping[str, Any]:
    found = asdict(seen.member) | {"state": seen.state.value, "silent_seconds": seen.silent_seconds}
    found["running"] = [asdict(it) for it in fleet.running.get(seen.member.id, ())]
    return {name: value for name, value in found.items() if value is not None and name != "handles"}


_VIEW: Final = View(
    columns={it: it for it in ("host", "pid", "kind", "state", "release", "up", "busy", "does")}, lead=4
)
_RUNS: Final = View(columns={it: it for it in ("pid", "for", "kind", "id", "context", "attempt", "what")}, lead=4)


def _print(fleet: FleetNow) -> None:
    now = datetime.now(UTC)
    print_rows(_VIEW, [_row(it) for it in fleet.members])
    for crew, member in ((it.member.crew, it.member) for it in fleet.members):
        if crew is not None and crew.why:
            print_text(f"{member.host} {member.pid}: {' '.join(crew.why.split())}")
    pids = {it.member.id: str(it.member.pid) for it in fleet.members}
    held = [(pids[id], it) for id, rows in fleet.running.items() for it in rows]
    if rows := [_runs(pid, it, now) for pid, it in [*held, *(("elsewhere", it) for it in fleet.others)]]:
        print("\nruns now:")
        print_rows(_RUNS, rows)
    if len(fleet.releases) > 1:
        told = ", ".join(f"{name} in {count}" for name, count in sorted(fleet.releases.items()))
        print_text(f"{len(fleet.releases)} releases run side by side: {told}")
    else:
        print(f"release {', '.join(fleet.releases)}" if fleet.releases else "")


def _row(seen: Seen) -> dict[str, object]:
    member = seen.member
    silent = f" {duration(seen.silent_seconds)}" if seen.state is State.LOST else ""
    busy = f"{member.usage.busy}/{member.usage.threads}" if member.usage else ""
    if member.crew is not None:
        busy = f"{member.crew.running}/{member.crew.wanted}"
    return {
        "host": member.host,
        "pid": member.pid,
        "kind": member.kind,
        "state": f"{seen.state.value}{silent}",
        "release": member.release_shown,
        "up": duration(round(member.up_seconds)),
        "busy": busy,
        "does": _does(member),
    }


def _runs(pid: str, it: RunningRow, now: datetime) -> dict[str, object]:
    seconds = it.seconds(now)
    took = "" if seconds is None else duration(round(seconds) or seconds)
    late = f" > {duration(it.limit)}" if it.too_long(now) else ""
    what = it.name if it.part in (None, it.name) else f"{it.name} of {it.part}"
    return {
        "pid": pid,
        "for": took + late,
        "kind": it.kind,
        "id": it.id,
        "context": it.context,
        "attempt": it.attempts if it.attempts > 1 else "",
        "what": what,
    }


def _does(member: Member) -> str:
    crew, usage = member.crew, member.usage
    if crew is not None:
        return f"{crew.least} to {crew.most} workers{f', {crew.crashes} crashed' if crew.crashes else ''}"
    return _doing(usage) if usage is not None else ""


def _doing(usage: Usage) -> str:
    doing = [f"{name} {count}" for name, count in sorted(usage.doing.items(), key=lambda it: -it[1])]
    return ", ".join([*doing, *([f"{usage.waiting} wait"] if usage.waiting else [])])
