"""The course of the demo: start everything, produce, watch, check, stop."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from relay.cli.demo.evidence import Counts, Evidence
    from relay.cli.demo.scenario import Production
    from relay.cli.demo.screen import Screen
    from relay.devstack.fleet import Fleet

_LOOK_EVERY: Final = 0.25
_INTERRUPTED: Final = 130
#: Short, so that the call that is never answered is seen to be repeated.
_HANDLER_TIMEOUT: Final = "2s"


def demo(
    stay: Annotated[bool, typer.Option("--stay", help="Keep everything running afterwards.")] = False,
    events: Annotated[int, typer.Option(min=10, help="How many events to commit.")] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="How long to wait for all of them.")] = 45.0,
    directory: Annotated[Path, typer.Option(help="Where the servers keep their data and logs.")] = Path(
        ".relay/demo"
    ),
) -> None:
    """Watch events flow from a transaction to a handler, on servers of the demo's own and fresh data.

    Status 0 only if the accounts balance: all that was committed is handled or dead-lettered, nothing
    that was rolled back is delivered, and no effect happens twice.
    """
    from rich.console import Console

    from relay.devstack.fleet import Fleet
    from relay.devstack.interrupts import interruptible

    console = Console(highlight=False)
    fleet = Fleet(_options(directory))
    with interruptible():
        try:
            status = _run(fleet, console, events, seconds, stay=stay)
        except KeyboardInterrupt:
            console.print("stopping (Ctrl-C again kills)")
            status = _INTERRUPTED
        finally:
            _close(fleet)
    raise typer.Exit(status)
