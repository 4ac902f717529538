"""The servers of a run, its databases, and the one fleet that runs at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, Self

from benchmarks.fleet import Fleet, Layout
from benchmarks.reference.bare import BareDramatiq
from benchmarks.sizes import Sizes
from relay.adapters.postgres.migrations import upgrade
from relay.devstack import DevStack, NatsServer, PostgresServer

Sync = Literal["default", "always"]
#: When stored messages reach the disk. nats-server's own default is an interval.
INTERVALS: Final[Mapping[Sync, str]] = {"default": "2m", "always": "always"}


class Stage:
    """What every measure works on. A context manager, used from one thread.

    ``rounds``: how often each case is measured. ``say`` gets a line about every step.
    """

    def __init__(
        self, directory: Path, sizes: Sizes, *, rounds: int, sync: Sync, say: Callable[[str], None]
    ) -> None:
        self.directory, self.sizes, self.rounds, self.say = directory, sizes, rounds, say
        self.stack = DevStack(directory)
        # A fleet of fifty contexts once kept more connections than PostgreSQL has by default.
        self.stack.postgres = PostgresServer(directory / "postgres", settings={"max_connections": "1000"})
        self.stack.nats = NatsServer(directory / "nats", sync=INTERVALS[sync])
        self._databases: dict[str, str] = {}
        self._fleet: Fleet | None = None
        self._bare: BareDramatiq | None = None

    def __enter__(self) -> Self:
        self.say("starting the servers")
        self.stack.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as last:
            last.callback(self.stack.stop)
            last.callback(self.rest)

    @property
    def nats_url(self) -> str:
        return self.stack.nats.url

    def database(self, name: str) -> str:
        """Return the address of a migrated database that no fleet uses."""
        if name not in self._databases:
            url = self.stack.postgres.create_database(name)
            upgrade(url)
            self._databases[name] = url
        return self._databases[name]

    def fleet(self, layout: Layout, *, workers: int = 2) -> Fleet:
        """Return the running fleet of a layout, started if need be; what else runs is stopped."""
        if self._fleet is None or self._fleet.layout != layout:
            self.rest()
            self._fleet = Fleet(self.stack, layout, self.directory / "fleets")
        if self._bare:
            self._bare.stop()
        self._fleet.run(workers)
        return self._fleet

    def bare(self) -> BareDramatiq:
        """Return reference (d), whose workers do not run yet; our own processes are stopped."""
        self.rest()
        if self._bare is None:
            self._bare = BareDramatiq(self.stack.valkey.url, self.directory)
        return self._bare

    def rest(self) -> None:
        """Stop all processes but the servers, so that a reference has the machine for itself."""
        if self._fleet:
            self._fleet.run(0)
        if self._bare:
            self._bare.stop()
