"""A consumer whose settings do not name the producer's context gets keys from its workers, over NATS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import psycopg
import pytest

from relay import Outbox
from tests.acceptance import personal_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.personal_effects import digest
from tests.integration.personal_support import VARIABLES, is_hidden, keys, order, payload, tables_hide
from tests.waiting import wait_for

PRODUCER = """
[contexts.vibespro]
[contexts.vibespro.stream]
name = "VIBESPRO_EVENTS"
subjects = ["vibespro.event.>"]
"""
CONSUMER = """
[contexts.sea]
[contexts.sea.subscriptions.from_vibespro]
stream = "VIBESPRO_EVENTS"
filter_subject = "vibespro.event.>"
handler = "python:tests.acceptance.personal_effect_alone"
"""


@dataclass
class Apart(Fleet):
    """Two services that share nothing but NATS: each process belongs to the one whose turn it is."""

    turn: str = ""

    def configuration(self) -> str:
        for name, text in (("vibespro", PRODUCER), ("sea", CONSUMER)):
            (self.directory / f"{name}.toml").write_text(text)
        return PRODUCER + CONSUMER

    @property
    def environment(self) -> dict[str, str]:
        found = super().environment
        if not self.turn:
            return found
        other = {"sea": "VIBESPRO", "vibespro": "SEA"}[self.turn]
        kept = {name: value for name, value in found.items() if f"__{other}__" not in name}
        config = str(self.directory / f"{self.turn}.toml")
        return {**kept, "RELAY_CONFIG": config, "RELAY_REDIS_NAMESPACE": self.turn}

    def of(self, context: str) -> Apart:
        self.turn = context
        return self


@pytest.fixture
def apart(server_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Apart]:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with Apart(server_directory, variables=VARIABLES) as fleet:
        fleet.query("sea", personal_effects.TABLE)
        yield fleet


def commit(fleet: Apart, *subjects: str) -> None:
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        Outbox("vibespro").add_many(connection, [order(it, f"o-{n}") for n, it in enumerate(subjects)])


def seen(fleet: Apart) -> list[str]:
    return sorted(it for (it,) in fleet.query("sea", "SELECT digest FROM seen"))


def asked(fleet: Apart, id: str) -> Any:
    """What anybody gets who asks the workers for a key."""

    async def ask() -> Any:
        client = await nats.connect(fleet.nats.url)
        try:
            reply = await client.request("relay.keys.vibespro", json.dumps({"ids": [id]}).encode(), timeout=20)
        finally:
            await client.close()
        return json.loads(reply.data)

    return asyncio.run(ask())


def test_keys_come_over_nats_and_while_none_answers_messages_wait(apart: Apart) -> None:
    fleet = apart
    fleet.of("vibespro").scheduler()
    producer = fleet.of("vibespro").worker()
    fleet.of("sea").scheduler()
    commit(fleet, "c-7", "c-8")
    wait_for("both are published", lambda: len(fleet.messages("VIBESPRO_EVENTS")) == 2, 60)
    [answer] = asked(fleet, str(keys(fleet.urls["vibespro"])[0]["id"]))["keys"]
    assert sorted(answer) == ["id", "master", "wrapped"]

    # A key that cannot be had now is an outage: the message waits, and spends no attempt.
    fleet.stop(producer)
    fleet.of("sea").worker()
    sql = "SELECT count(*) FROM inbox_messages WHERE attempts = 0 AND last_error LIKE 'KEYS_UNREACHABLE%%'"
    wait_for("both wait for their keys", lambda: fleet.query("sea", sql) == [(2,)], 120)
    assert seen(fleet) == []
    fleet.of("vibespro").worker()
    both = sorted(digest(payload(it)) for it in ("c-7", "c-8"))
    wait_for("both are handled", lambda: seen(fleet) == both, 120)

    assert all(is_hidden(message.data) for message in fleet.messages("VIBESPRO_EVENTS"))
    assert all(map(tables_hide, fleet.urls.values()))
