"""The course of the demo: start everything, produce, watch, check, stop."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from relay.cli.demo.accounts import Counts
    from relay.cli.demo.profiles import Profile
    from relay.devstack.fleet import DevFleetOptions, Fleet

_INTERRUPTED: Final = 130
#: In the wheel the configuration is beside this file; a checkout has it at its root.
CONFIG_PLACES: Final = (Path(__file__).with_name("relay.toml"), Path(__file__).parents[3] / "relay.toml")
#: A short time, so that a call without an answer is soon repeated.
_HANDLER_TIMEOUT: Final = "2s"


def demo(
    stay: Annotated[bool, typer.Option("--stay", help="Keep everything running afterwards.")] = False,
    events: Annotated[int, typer.Option(min=10, help="How many events to commit.")] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="How long to wait for all of them.")] = 45.0,
    directory: Annotated[Path, typer.Option(help="Where the servers keep their data and logs.")] = Path(
        ".relay/demo"
    ),
    profile: Annotated[
        str | None, typer.Option(help="Play a wire profile: sr, microdao or cloudevents. It also has fresh data.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON on stdout, and what happens on stderr.")
    ] = False,
) -> None:
    """Watch events flow from a transaction to a handler, on servers of the demo's own and fresh data.

    Status 0 only if the accounts balance: every committed event is handled or a dead letter, no event that was
    rolled back is delivered, and no effect happens twice.
    """
    from rich.console import Console

    from relay.cli.dev import close
    from relay.cli.extra import require_extra
    from relay.cli.options import print_json

    require_extra()
    from relay.cli.demo.profiles import find
    from relay.devstack.fleet import Fleet
    from relay.devstack.interrupts import interruptible

    console = Console(highlight=False, stderr=as_json)
    chosen = None if profile is None else find(profile)
    fleet = Fleet(_options(directory) if chosen is None else _options_of(chosen, directory))
    with interruptible():
        try:
            balanced, counts = _run(fleet, console, chosen, events, seconds)
            status = 0 if balanced else 1
            if as_json:
                figures = None if counts is None else asdict(counts)
                print_json({"profile": profile, "balanced": balanced, "counts": figures})
            if stay:
                _stay(fleet, console)
        except KeyboardInterrupt:
            status = _INTERRUPTED
        finally:
            console.print("\nStopping …")
            close(fleet, console.print)
    raise typer.Exit(status)


def _options(directory: Path) -> DevFleetOptions:
    """Use only the demo's own configuration, in any directory. Settings of the shell are for other systems."""
    from relay.devstack.configuration import variable
    from relay.devstack.fleet import DevFleetOptions

    timeout = variable("sea", "SUBSCRIPTIONS", "from_vibespro", "HANDLER_TIMEOUT")
    return DevFleetOptions(
        directory=directory,
        config=next(place for place in CONFIG_PLACES if place.is_file()),
        samples="all",
        inherit=False,
        fresh=True,
        environment={timeout: _HANDLER_TIMEOUT},
    )


def _options_of(profile: Profile, directory: Path) -> DevFleetOptions:
    """Use only the profile's configuration. Workers find its handler in its directory."""
    from relay.devstack.fleet import DevFleetOptions

    return DevFleetOptions(
        directory=directory,
        config=profile.config,
        inherit=False,
        fresh=True,
        modules=profile.directory,
    )


def _run(
    fleet: Fleet, console: Console, profile: Profile | None, events: int, seconds: float
) -> tuple[bool, Counts | None]:
    from relay.cli.demo import evidence, play, profiles

    begin = time.monotonic()
    console.print("Starting PostgreSQL, NATS, Valkey, scheduler, worker and handler …")
    fleet.start()
    console.print(f"Ready after {time.monotonic() - begin:.1f} s; logs are in {fleet.stack.directory / 'logs'}\n")
    settings = fleet.configuration.settings
    played = evidence.Vibes(settings) if profile is None else profiles.ProfileEvents(settings, profile)
    return play.play(fleet, played, console, events, seconds)


def _stay(fleet: Fleet, console: Console) -> None:
    """Wait for Ctrl-C, or for a process to end by itself."""
    from relay.cli.dev import describe

    console.print(f"\nEverything keeps running:\n{describe(fleet)}\nCtrl-C stops it")
    try:
        while (failure := fleet.ended()) is None:
            time.sleep(0.2)
        console.print(failure, markup=False)
    except KeyboardInterrupt:
        return
