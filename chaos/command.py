"""`relay chaos`: faults against the whole system on this machine, and a verdict."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from relay.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from chaos.run import RunOptions, Verdict

#: Runs up to this long get many short faults, so that there is something to see.
_SHORT_MINUTES: Final = 5.0


class Topology(StrEnum):
    """How the servers are arranged; see `chaos.topologies`."""

    SINGLE = "single"
    CLUSTER = "cluster"
    FAILOVER = "failover"


def chaos(  # noqa: PLR0913, PLR0917 - its options
    minutes: Annotated[float, typer.Option(min=0.2, help="For how long faults strike.")] = 2.0,
    seed: Annotated[int | None, typer.Option(help="Repeats the faults and events of a run.")] = None,
    liveness: Annotated[
        bool,
        typer.Option(
            "--liveness",
            help="One worker and one scheduler gone for good, Redis flushed every 5 s, nothing heals.",
        ),
    ] = False,
    rate: Annotated[float, typer.Option(min=1, help="Events per second, at most.")] = 60.0,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    only: Annotated[list[str] | None, typer.Option("--only", help="A kind of fault; may be repeated.")] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", help="A kind of fault to leave out; may be repeated.")
    ] = None,
    topology: Annotated[
        Topology,
        typer.Option(help="One of each server, three NATS nodes, or a PostgreSQL whose replica takes over."),
    ] = Topology.SINGLE,
    directory: Annotated[Path, typer.Option(help="Where runs leave records, logs and reports.")] = Path(
        ".relay/chaos"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the verdict as JSON on stdout, and what happens on stderr.")
    ] = False,
) -> None:
    """Kill, pause, restart, flush, cut and delay everything there is, and check that no promise is broken.

    Runs on servers of its own with a workload of its own; your configuration is not read. Ends with a report as
    an HTML page. Status 0 only if every promise was kept.
    """
    from relay.cli.extra import require_extra

    require_extra()
    from chaos.report import summary
    from chaos.run import run
    from relay.devstack.interrupts import interruptible

    seed = secrets.randbelow(1_000_000) if seed is None else seed
    options = replace(
        _options(directory, minutes, seed, rate, workers, liveness=liveness),
        kinds=_kinds(only, without),
        topology=topology.value,
    )
    command = f"relay chaos --minutes {minutes:g} --seed {seed} --rate {rate:g} --workers {workers}"
    command += " --liveness" if liveness else ""
    command += "" if topology is Topology.SINGLE else f" --topology {topology.value}"
    command += "".join(f" --only {kind}" for kind in only or ())
    command += "".join(f" --without {kind}" for kind in without or ())
    say = partial(typer.echo, err=as_json)
    say(command)
    with interruptible():
        verdict = run(options, command, say)
    if as_json:
        typer.echo(json.dumps(_as_json(command, verdict), indent=2))
    else:
        say(f"\n{summary(verdict.judgements)}\n\nreport: {verdict.report}")
    raise typer.Exit(0 if verdict.kept else 1)


def _as_json(command: str, verdict: Verdict) -> dict[str, Any]:
    judgements = [{**asdict(it), "verdict": it.verdict} for it in verdict.judgements]
    return {"command": command, "kept": verdict.kept, "report": str(verdict.report), "judgements": judgements}


def _kinds(only: list[str] | None, without: list[str] | None) -> list[str] | None:
    """Return the chosen kinds of faults; None for all. Raises InvalidRequest for an unknown kind."""
    from chaos.faults import FAULTS

    for name in (*(only or ()), *(without or ())):
        if name not in FAULTS:
            raise InvalidRequest(f"no fault is called {name[:80]!r}", hint=f"known: {', '.join(FAULTS)}")
    if not only and not without:
        return None
    return [name for name in FAULTS if name in (only or FAULTS) and name not in (without or ())]


def _options(
    directory: Path, minutes: float, seed: int, rate: float, workers: int, *, liveness: bool
) -> RunOptions:
    from chaos.run import RunOptions

    short = minutes <= _SHORT_MINUTES
    return RunOptions(
        directory=directory / f"{time.strftime('%Y%m%d-%H%M%S')}-seed-{seed}",
        seconds=minutes * 60,
        seed=seed,
        rate=rate,
        workers=workers,
        liveness=liveness,
        every=(0.2, 1.5) if short else (3.0, 12.0),
        hold=(3.0, 6.0) if short else (5.0, 30.0),
        max_attempts=25 if short else 60,
    )
