"""One run of the demo on a running fleet: produce, watch until everything has arrived, check the books."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from nats.errors import Error as NatsError
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from relay.cli.demo.accounts import audit
from relay.cli.demo.evidence import Counts, Evidence
from relay.cli.demo.scenario import Base, Production, plan, produce
from relay.cli.demo.screen import Screen, summarise, verdict
from relay.devstack.fleet import Fleet
from relay.domain.errors import RelayError

_LOOK_EVERY: Final = 0.25


def play(fleet: Fleet, console: Console, events: int, seconds: float) -> bool:
    """Run the scenario and print its outcome; returns whether the accounts balance."""
    evidence = Evidence(fleet.configuration.settings)
    production = Production()
    try:
        Base.metadata.create_all(evidence.producer)
        failure = _perform(fleet, evidence, production, Screen(console, events), events, seconds)
        if failure:
            console.print(failure, markup=False)
        return _check(evidence, production, console) and failure is None
    except (SQLAlchemyError, NatsError, RelayError) as error:
        console.print(f"the accounts cannot be read: {error}", markup=False)
        return False
    finally:
        evidence.close()


def _perform(
    fleet: Fleet, evidence: Evidence, production: Production, screen: Screen, events: int, seconds: float
) -> str | None:
    """Produce and watch to the end; returns what went wrong, if anything."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="producer") as producer, screen.open():
        try:
            producing = producer.submit(produce, evidence.producer, plan(events), production, stop)
            return watch(fleet, evidence, producing, screen, time.monotonic() + seconds)
        finally:
            stop.set()


class Watched(Protocol):
    """What is looked at until everything has arrived."""

    def counts(self) -> Counts:
        """Count the events at each stage."""

    async def unacknowledged(self) -> int:
        """Count the messages that JetStream has not seen acknowledged."""


def watch(fleet: Fleet, evidence: Watched, producing: Future[None], screen: Screen, deadline: float) -> str | None:
    """Show counts until all has arrived, a process ends or it is late; returns what went wrong, if anything."""
    while True:
        counts = evidence.counts()
        finished = producing.done() and _all_arrived(counts) and asyncio.run(evidence.unacknowledged()) == 0
        late = time.monotonic() > deadline
        failure = fleet.ended()
        screen.show(counts, last=finished or late or failure is not None)
        if producing.done():
            producing.result()
        if finished or failure:
            return failure
        if late:
            return "The time is over and not everything has arrived."
        time.sleep(_LOOK_EVERY)


def _all_arrived(counts: Counts) -> bool:
    return counts.committed == counts.published == counts.handled + counts.dead_lettered


def _check(evidence: Evidence, production: Production, console: Console) -> bool:
    books = asyncio.run(evidence.books(production))
    faults = audit(books)
    summarise(console, books, evidence.answers(), evidence.latencies())
    verdict(console, books, faults)
    return not faults
