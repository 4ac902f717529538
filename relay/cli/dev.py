"""`relay dev`: the whole system on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from relay.settings.urls import hide_url

#: Findings about processes that have not sent a heartbeat yet, and how long they may take, in seconds.
_BEGINNING: Final = frozenset({"NO_SCHEDULER", "NO_WORKER"})
_SHOWN_SECONDS: Final = 5.0

if TYPE_CHECKING:
    from relay.devstack.fleet import Fleet
    from relay.devstack.logs import LogConsole


def dev(
    directory: Annotated[Path, typer.Option(help="Where the servers keep their data and logs.")] = Path(".relay"),
    processes: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each worker, for handlers.")] = 8,
    samples: Annotated[
        bool, typer.Option("--samples", help="Use sample handlers instead of those that relay.toml names.")
    ] = False,
) -> None:
    """Run servers, scheduler and workers until Ctrl-C, with the contexts and handlers of relay.toml.

    This starts PostgreSQL, NATS and Valkey. They replace the servers of the configuration, which are not touched.
    If a subscription names no handler, a sample handler answers. With the extra ops the console for operators runs
    too, at the address that is shown. Status 1 when a process ends by itself.
    """
    # What is needed later, too: Python 3.11 makes another error of an interrupt while a class is made.
    from relay.cli import doctor, health  # noqa: F401
    from relay.cli.extra import has_ops, require_extra

    require_extra(handler=samples)
    from relay.devstack.fleet import DevFleetOptions, Fleet
    from relay.devstack.interrupts import interruptible
    from relay.devstack.logs import LogConsole

    console = LogConsole()
    options = DevFleetOptions(
        directory=directory,
        processes=processes,
        threads=threads,
        samples="all" if samples else "unnamed",
        ops=has_ops(),
    )
    fleet = Fleet(options, console)
    require_extra(handler=bool(fleet.sampled()))
    with interruptible():
        try:
            console.start()
            failed = _run(fleet, console)
        finally:
            close(fleet, console.say)
            console.stop()
    if failed:
        raise typer.Exit(1)


def _run(fleet: Fleet, console: LogConsole) -> bool:
    """Start and watch; returns whether something went wrong."""
    begin = time.monotonic()
    try:
        fleet.start()
        console.say(f"ready after {time.monotonic() - begin:.1f} s\n{describe(fleet)}\nCtrl-C stops everything")
        if not fleet.options.ops:
            console.say("a console in the browser: pip install 'jetrelay[ops]'")
        console.say(examine(fleet))
        return watch(fleet, console)
    except KeyboardInterrupt:
        console.say("stopping (Ctrl-C again kills)")
        return False


def examine(fleet: Fleet) -> str:
    """Say what `relay doctor` finds. Processes that have just begun get a moment for their first heartbeat."""
    from relay.cli.doctor import entry, summary
    from relay.cli.health import diagnose
    from relay.ops.queries import Diagnose

    deadline = time.monotonic() + _SHOWN_SECONDS
    while True:
        report = diagnose(fleet.configuration.settings, Diagnose(close=True))
        if time.monotonic() > deadline or not any(it.code in _BEGINNING for it in report.findings):
            return f"relay doctor: {summary(report)}" + "".join(f"\n{entry(it, 100)}" for it in report.findings)
        time.sleep(0.2)


def watch(fleet: Fleet, console: LogConsole) -> bool:
    """Wait until a process ends by itself, and say so. False when only the output was closed."""
    while not console.closed.wait(0.2):
        if failure := fleet.ended():
            console.say(failure)
            return True
    return False


def close(fleet: Fleet, say: Callable[[str], object]) -> None:
    """Stop the fleet. Another signal meanwhile kills it."""
    from relay.devstack.interrupts import ignore_interrupts

    try:
        fleet.stop()
    except KeyboardInterrupt:
        ignore_interrupts()
        say("killing")
        fleet.kill()


def _handler(fleet: Fleet, handler: str) -> str:
    sample = "  (a sample)" if handler in fleet.handlers.values() else ""
    return f"{hide_url(handler)}{sample}" if "://" in handler else handler


def describe(fleet: Fleet) -> str:
    """List what runs where. Passwords are left out: they are in the file for other shells."""
    settings = fleet.configuration.settings
    rows = [
        (f"database {name}", hide_url(context.database_url.get_secret_value()))
        for name, context in settings.contexts.items()
    ]
    rows += [("NATS", hide_url(fleet.stack.nats.url)), ("Redis", hide_url(fleet.stack.valkey.url))]
    rows += [
        (f"handler of {name}.{it.name}", _handler(fleet, it.handler))
        for name, context in settings.contexts.items()
        for it in context.subscriptions.values()
    ]
    if fleet.options.ops:
        rows += [("console", fleet.ops or "")]
    rows += [("logs", str(fleet.stack.directory / "logs"))]
    rows += [("other shells", f". {fleet.shell_file}; relay backlog")]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
