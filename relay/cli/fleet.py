"""`relay fleet`: as many worker processes on this host as the load needs, and the members of all hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from relay.cli.options import JsonOption, Options, print_json, with_options
from relay.cli.tables import print_table
from relay.domain.members import Member, Seen, State, Usage

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
#: How many characters of a host's name are shown.
_HOST_COLUMNS: Final = 20
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
    """List the members of all hosts: workers and supervisors, and what they do."""
    seen = asyncio.run(_members())
    if as_json:
        print_json([_plain(it) for it in seen])
    elif seen:
        _print(seen)
    else:
        print("no heartbeat of a worker or supervisor for ten minutes")


async def _members() -> Sequence[Seen]:
    from relay.bus import QueryBus
    from relay.ops.servers import ListMembers, answer_for_servers
    from relay.settings import load_settings

    return (await answer_for_servers(QueryBus(), load_settings()).ask_async(ListMembers())).unwrap()


def _plain(seen: Seen) -> Mapping[str, Any]:
    found = asdict(seen.member) | {"state": seen.state.value, "silent_seconds": seen.silent_seconds}
    return {name: value for name, value in found.items() if value is not None}


def _print(seen: Sequence[Seen]) -> None:
    print_table(("host", "pid", "kind", "state", "up", "busy", "does"), [_row(it) for it in seen])
    for crew, member in ((it.member.crew, it.member) for it in seen):
        if crew is not None and crew.why:
            print(f"{_short(member.host)} {member.pid}: {' '.join(crew.why.split())}")
    releases = sorted({it.member.version for it in seen if it.member.version})
    print(f"release {', '.join(releases)}" if releases else "")


def _row(seen: Seen) -> tuple[object, ...]:
    member = seen.member
    silent = f" {_time(seen.silent_seconds)}" if seen.state is State.LOST else ""
    busy = f"{member.usage.busy}/{member.usage.threads}" if member.usage else ""
    if member.crew is not None:
        busy = f"{member.crew.running}/{member.crew.wanted}"
    state, up = f"{seen.state.value}{silent}", _time(member.up_seconds)
    return _short(member.host), member.pid, member.kind, state, up, busy, _does(member)


def _short(host: str) -> str:
    """A host's name, short enough for 80 columns. It keeps the end, because names of pods differ there."""
    return host if len(host) <= _HOST_COLUMNS else f"{host[:6]}…{host[7 - _HOST_COLUMNS :]}"


def _time(seconds: float) -> str:
    """Seconds in the two largest units that they have."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def _does(member: Member) -> str:
    crew, usage = member.crew, member.usage
    if crew is not None:
        return f"{crew.least} to {crew.most} workers{f', {crew.crashes} crashed' if crew.crashes else ''}"
    return _doing(usage) if usage is not None else ""


def _doing(usage: Usage) -> str:
    doing = [f"{name} {count}" for name, count in sorted(usage.doing.items(), key=lambda it: -it[1])]
    return ", ".join([*doing, *([f"{usage.waiting} wait"] if usage.waiting else [])])
