"""Wire profiles side by side: one relay.toml and one fleet for those of examples/profiles and the default."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from relay.domain.topology import RELAY_ADVISORIES
from relay.settings import Settings, load_settings
from tests.acceptance.fleet import ROOT, Fleet

DEFAULT = "default"


@dataclass(frozen=True)
class Played:
    """A profile in a process that knows others too: its modules have full names."""

    name: str
    package: str

    @property
    def directory(self) -> Path:
        return ROOT / self.package.replace(".", "/")

    @property
    def producer(self) -> ModuleType:
        return importlib.import_module(f"{self.package}.producer")

    @property
    def handler(self) -> ModuleType:
        return importlib.import_module(f"{self.package}.handler")

    @property
    def config(self) -> str:
        text = (self.directory / "relay.toml").read_text()
        for name in ("handler", "queries"):
            text = re.sub(rf'"(python:)?{name}"$', rf'"\1{self.package}.{name}"', text, flags=re.MULTILINE)
        return text

    @property
    def consumers(self) -> list[str]:
        """The contexts that handle its messages."""
        contexts = tomllib.loads(self.config)["contexts"]
        return [name for name, context in contexts.items() if "subscriptions" in context]


ALL = (
    Played(DEFAULT, "tests.acceptance.default_profile"),
    *(
        Played(path.parent.name, f"examples.profiles.{path.parent.name}")
        for path in sorted((ROOT / "examples" / "profiles").glob("*/relay.toml"))
    ),
)
NAMES = [played.name for played in ALL]


def played(name: str) -> Played:
    [found] = [one for one in ALL if one.name == name]
    return found


class ProfileFleet(Fleet):
    """All profiles in one fleet."""

    @cached_property
    def contexts(self) -> Sequence[str]:
        return list(tomllib.loads(self.configuration())["contexts"])

    def configuration(self) -> str:
        return "\n".join(one.config for one in ALL)

    def migrate(self) -> None:
        self.relay("db", "upgrade")
        for one in ALL:
            self.query(one.producer.CONTEXT, one.producer.TABLES)
            for name in one.consumers:
                self.query(name, one.handler.TABLES)

    @cached_property
    def settings(self) -> Settings:
        return load_settings(self.directory / "relay.toml", self.environment)

    def effects(self, one: Played) -> Counter[str]:
        """How often each message of a profile took effect."""
        found = [id for name in one.consumers for (id,) in self.query(name, "SELECT id FROM effects")]
        return Counter(found)

    def inbox_counts(self, one: Played) -> tuple[int, int, int]:
        """The messages received, processed and dead-lettered by a profile's consumers."""
        sql = "SELECT count(*), count(processed_at), count(dead_lettered_at) FROM inbox_messages"
        received, processed, dead = zip(*(self.query(name, sql)[0] for name in one.consumers), strict=True)
        return sum(received), sum(processed), sum(dead)

    def waiting(self, one: Played) -> int:
        """How many messages JetStream has not seen acknowledged by a profile's consumers."""

        async def ask(js: Any) -> int:
            count = 0
            for name in one.consumers:
                for sub in self.settings.contexts[name].subscriptions.values():
                    info = await js.consumer_info(sub.stream, sub.durable)
                    count += (info.num_ack_pending or 0) + (info.num_pending or 0)
            return count

        return int(self.jetstream(ask))

    def stored(self, one: Played) -> int:
        """How many messages the streams of a profile's producer hold, dead letters left out."""
        context = one.producer.CONTEXT
        names = [spec.name for spec in self.settings.streams(context)]
        others = {self.settings.contexts[context].dlq.name, RELAY_ADVISORIES.name}

        async def ask(js: Any) -> int:
            return sum([(await js.stream_info(name)).state.messages for name in names if name not in others])

        return int(self.jetstream(ask))
