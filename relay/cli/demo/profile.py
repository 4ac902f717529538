"""A wire profile to play: a directory with relay.toml, producer.py and handler.py.

``producer.py`` has ``CONTEXT``, ``TABLES`` (what its database needs beside our tables) and ``record(connection,
n)``, which writes a business row and its message and returns the message's id. ``handler.py`` has ``TABLES`` with
the table ``effects``, and functions that write the id of each message there.
"""

from __future__ import annotations

import importlib
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Final

import psycopg

from relay.domain.errors import ConfigurationError

#: In the wheel the profiles are beside this file; in a checkout they are examples.
_PLACES: Final = (Path(__file__).with_name("profiles"), Path(__file__).parents[3] / "examples" / "profiles")
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
    found = {path.parent.name: path.parent for place in _PLACES for path in place.glob("*/relay.toml")}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigurationError(
            f"no profile is called {name[:80]!r}", field="--profile", hint=f"there are: {known}"
        )
    return Profile(name, found[name])


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
