"""One run of the demo on a running fleet: produce, watch until everything has arrived, check the books."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import psycopg
from nats.errors import Error as NatsError
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from relay.cli.demo.accounts import Counts
from relay.cli.demo.evidence import Played
from relay.cli.demo.screen import Screen
from relay.devstack.fleet import Fleet
from relay.domain.errors import RelayError

_LOOK_EVERY: Final = 0.25


def play(
    fleet: Fleet, played: Played, console: Console, events: int, seconds: float
) -> tuple[bool, Counts | None]:
    """Produce, watch and print the outcome; returns whether the accounts balance, and the last figures."""
    try:
        played.begin()
        failure = _perform(fleet, played, Screen(console, events), events, seconds)
        if failure:
            console.print(failure, markup=False)
        return played.check(console) and failure is None, played.counts()
    except (SQLAlchemyError, psycopg.Error, NatsError, RelayError) as error:
        console.print(f"the accounts cannot be read: {error}", markup=False)
        return False, None
    finally:
        played.close()


def _perform(fleet: Fleet, played: Played, screen: Screen, events: int, seconds: float) -> str | None:
    """Produce and watch to the end; returns what went wrong, if anything."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="producer") as producer, screen.open():
        try:
            producing = producer.submit(played.produce, events, stop)
            return _watch(fleet, played, producing, screen, time.monotonic() + seconds)
        finally:
            stop.set()


def _watch(fleet: Fleet, played: Played, producing: Future[None], screen: Screen, deadline: float) -> str | None:
    """Show counts until all has arrived, a process ends or the time is over. Returns what went wrong."""
    while True:
        counts = played.counts()
        finished = producing.done() and _all_arrived(counts) and asyncio.run(played.unacknowledged()) == 0
        late = time.monotonic() > deadline
        failure = fleet.ended()
        screen.show(counts, last=finished or late or failure is not None)
        if producing.done():
            producing.result()
        if finished or failure:
            return failure
        if late:
            return "The time is over, but not everything has arrived."
        time.sleep(_LOOK_EVERY)


def _all_arrived(counts: Counts) -> bool:
    return counts.committed == counts.published == counts.handled + counts.dead_lettered
