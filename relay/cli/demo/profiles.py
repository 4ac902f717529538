"""Wire profiles: how `relay.cli.demo.play` plays one, and the accounts of it.

A profile is a directory with relay.toml, producer.py and handler.py. ``producer.py`` has ``CONTEXT``, ``TABLES``
(what its database needs beside our tables) and ``record(connection, n)``, which writes a business row and its
message and returns the message's id. ``handler.py`` has ``TABLES`` with the table ``effects``, and functions that
write the id of each message there.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Final

import psycopg
from rich.console import Console
from sqlalchemy import Text, column, select, table

from relay.cli.demo.accounts import Counts
from relay.cli.demo.evidence import Played, rows
from relay.cli.demo.screen import balance
from relay.credentials import jetstream
from relay.domain.errors import ConfigurationError
from relay.settings import Settings

_SHOWN: Final = 5

_effects = table("effects", column("id", Text))
#: In the wheel the profiles are beside this file; in a checkout they are examples.
PLACES: Final = (Path(__file__).with_name("profiles"), Path(__file__).parents[3] / "examples" / "profiles")
_ROLLED_BACK_EVERY: Final = 7
#: How long production takes, so that there is something to watch.
_SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile's directory. Its modules are imported when they are needed."""

    name: str
    directory: Path

    @property
    def config(self) -> Path:
        """Its relay.toml."""
        return self.directory / "relay.toml"

    @property
    def producer(self) -> ModuleType:
        """The module that writes messages."""
        return self._module("producer")

    @property
    def handler(self) -> ModuleType:
        """The module that handles them."""
        return self._module("handler")

    def _module(self, name: str) -> ModuleType:
        """Import as the workers do: by its plain name, from the profile's directory. One profile in a process."""
        if str(self.directory) not in sys.path:
            sys.path.insert(0, str(self.directory))
        return importlib.import_module(name)


@dataclass(slots=True)
class Production:
    """The ids that the producer committed and rolled back, in order. Filled while it works."""

    committed: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)


def find(name: str) -> Profile:
    """Return a profile by its name. Raises ConfigurationError, which lists the profiles."""
    profiles = {path.parent.name: path.parent for place in PLACES for path in place.glob("*/relay.toml")}
    if name not in profiles:
        names = ", ".join(sorted(profiles)) or "none"
        raise ConfigurationError(
            f"no profile is called {name[:80]!r}", field="--profile", hint=f"there are: {names}"
        )
    return Profile(name, profiles[name])


def produce(profile: Profile, url: str, count: int, production: Production, stop: threading.Event) -> None:
    """Commit ``count`` messages at an even pace, each in its transaction. Other transactions roll back."""
    with psycopg.connect(url) as connection:
        for number in range(1, count + 1):
            if stop.wait(_SECONDS / count):
                return
            production.committed.append(_record(profile, connection, number))
            if number % _ROLLED_BACK_EVERY == 0:
                production.rolled_back.append(_record(profile, connection, count + number, roll_back=True))


def _record(profile: Profile, connection: psycopg.Connection, number: int, *, roll_back: bool = False) -> str:
    with connection.transaction():
        written = str(profile.producer.record(connection, number))
        if roll_back:
            raise psycopg.Rollback  # leaves the block, and nothing else
    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileBooks:
    """What each place holds. ``effects`` repeats an id as often as its effect is there."""

    production: Production
    counts: Counts
    stored: int
    effects: Sequence[str]
    unacknowledged: int


def audit(books: ProfileBooks) -> Iterator[str]:
    """Return all faults."""
    committed, rolled_back = set(books.production.committed), set(books.production.rolled_back)
    effects = Counter(books.effects)
    for what, ids in (
        ("committed, but without an effect", committed - effects.keys()),
        ("rolled back, but with an effect", rolled_back & effects.keys()),
        ("with an effect, but never committed", effects.keys() - committed - rolled_back),
        ("with a second effect", {id for id, times in effects.items() if times > 1}),
    ):
        if ids:
            shown = ", ".join(sorted(ids)[:_SHOWN])
            yield f"{len(ids)} {what}: {shown}{' …' if len(ids) > _SHOWN else ''}"
    counts = books.counts
    for where, count in (
        ("published", counts.published),
        ("in the streams", books.stored),
        ("in the inbox", counts.received),
        ("handled", counts.handled),
    ):
        if count != counts.committed:
            yield f"{counts.committed} committed, but {count} {where}"
    if books.unacknowledged:
        yield f"{books.unacknowledged} messages that are not acknowledged in JetStream"


class ProfileEvents(Played):
    """The events of a profile."""

    def __init__(self, settings: Settings, profile: Profile) -> None:
        self._profile = profile
        self.production = Production()
        super().__init__(settings, profile.producer.CONTEXT, self.production.committed)

    def begin(self) -> None:
        """Make the tables of the profile's own."""
        for engine, module in [
            (self.producer, self._profile.producer),
            *((engine, self._profile.handler) for engine in self.consumers),
        ]:
            with engine.begin() as connection:
                connection.exec_driver_sql(module.TABLES)

    def produce(self, events: int, stop: threading.Event) -> None:
        """See Played."""
        url = self.settings.contexts[self._profile.producer.CONTEXT].database
        produce(self._profile, url, events, self.production, stop)

    def check(self, console: Console) -> bool:
        """See Played."""
        books = self.books()
        faults = list(audit(books))
        balance(console, faults, _sums(books))
        return not faults

    def books(self) -> ProfileBooks:
        """Read everything."""
        effects = [id for engine in self.consumers for (id,) in rows(engine, select(_effects.c.id))]
        return ProfileBooks(
            production=self.production,
            counts=self.counts(),
            stored=asyncio.run(self._stored()),
            effects=effects,
            unacknowledged=asyncio.run(self.unacknowledged()),
        )

    async def _stored(self) -> int:
        """Count the messages of the streams that have subscriptions."""
        async with jetstream(self.settings) as js:
            streams = {subscription.stream for subscription in self.subscriptions}
            return sum([(await js.stream_info(name)).state.messages for name in sorted(streams)])


def _sums(books: ProfileBooks) -> list[str]:
    production = books.production
    return [
        f"{len(production.committed)} committed, {books.counts.handled} handled",
        f"{len(production.rolled_back)} rolled back, none of them delivered",
        f"{len(books.effects)} effects, none of them twice",
        "0 messages unacknowledged in JetStream",
    ]
