"""An event from a transaction to handlers, through servers that all demand credentials and TLS on both sides."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from starlette.requests import Request
from starlette.responses import Response

from relay import Event, Outbox
from relay.handler.contract import Signatures
from tests.acceptance import python_effects
from tests.acceptance.fleet import CONFIG, ROOT, Fleet
from tests.acceptance.handler import HandlerService
from tests.secured import (
    PASSWORD,
    Authority,
    GuardedNats,
    GuardedValkey,
    Operator,
    TlsFront,
    guarded_database,
    guarded_postgres,
    nats_tls,
)
from tests.waiting import wait_for

CONTEXTS = ("vibespro", "sea", "land")
LAND = """
[contexts.land.subscriptions.from_vibespro]
stream = "VIBESPRO_EVENTS"
filter_subject = "vibespro.event.>"
handler = "python:tests.acceptance.python_effects"
"""
TOKEN, SIGNING, VALKEY = "b3arer", "sign1ng", "val/key@pw"
SUBSCRIPTION, ALERTS = "RELAY_CONTEXTS__SEA__SUBSCRIPTIONS__FROM_VIBESPRO", "RELAY_CONTEXTS__SEA__ALERTS"


class Strict(HandlerService):
    """Handles events and takes alerts, but only from who proves who it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alerts: list[dict[str, Any]] = []
        self.strangers: list[str] = []

    async def _handle(self, request: Request) -> Response:
        body = await request.body()
        try:
            assert request.headers.get("authorization") == f"Bearer {TOKEN}"
            Signatures(SIGNING).verify(request.headers, body)
        except Exception as error:
            self.strangers.append(repr(error))
            return Response(status_code=401)
        if "incidents" in (alert := json.loads(body)):
            self.alerts.append(alert)
        if "class" in alert:
            return Response(status_code=204)
        return await super()._handle(request)


class Secured(Fleet):
    """Servers that demand everything there is. Our processes get addresses and files, no other way in."""

    service: Strict

    def __post_init__(self) -> None:
        self._stack = ExitStack()
        self._secrets = self.directory / "secrets"

    def __enter__(self) -> Secured:
        with self._stack as stack:
            self._secrets.mkdir(parents=True)
            self._serve(stack)
            fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "directory"}
            (self.directory / "relay.toml").write_text(CONFIG.format(**fields) + LAND)
            stack.callback(self._kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _kill(self) -> None:
        for process in self.running:
            if process.poll() is None:
                self.kill(process)

    def _serve(self, stack: ExitStack) -> None:
        self.authority, operator = Authority(self.directory / "tls"), Operator()
        tls = self.authority.demanding
        server, front = stack.enter_context(guarded_postgres(self.directory / "postgres", tls()))
        configuration = operator.configuration + nats_tls(self.authority)
        self.nats = stack.enter_context(GuardedNats(self.directory / "nats", configuration, "tls"))
        users = f"relay on >{VALKEY} ~relay ~relay:* +@all"
        self.valkey = stack.enter_context(GuardedValkey(self.directory / "valkey", users))
        self.service = stack.enter_context(Strict())
        self.queue = stack.enter_context(TlsFront(self.valkey.port, tls()))
        self.web = stack.enter_context(TlsFront(self.service.port, tls()))
        self.fronts = (front, self.queue, self.web)
        self.handler = f"https://localhost:{self.web.port}/handle"
        query = self.authority.libpq()
        self.urls = {name: guarded_database(server, front, name, query) for name in CONTEXTS}
        operator.write_creds(self._secrets / "nats.creds")
        for name, secret in {**self.urls, "token": TOKEN, "signing": SIGNING, "valkey": VALKEY}.items():
            (self._secrets / name).write_text(f"{secret}\n")

    @property
    def environment(self) -> dict[str, str]:
        path = self._secrets.joinpath
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "RELAY_CONFIG": str(self.directory / "relay.toml"),
            "NATS_URL": self.nats.url,
            "NATS_CREDS": str(path("nats.creds")),
            "REDIS_URL": f"rediss://localhost:{self.queue.port}/0",
            "RELAY_REDIS__USER": "relay",
            "RELAY_REDIS__PASSWORD_FILE": str(path("valkey")),
            f"{ALERTS}__WEBHOOK": self.handler,
        }
        for name in CONTEXTS:
            variables[f"RELAY_CONTEXTS__{name.upper()}__DATABASE_URL_FILE"] = str(path(name))
        for table in (ALERTS, SUBSCRIPTION):
            variables[f"{table}__TOKEN_FILE"] = str(path("token"))
            variables[f"{table}__SIGNING_SECRET_FILE"] = str(path("signing"))
        for table in (ALERTS, SUBSCRIPTION, "RELAY_NATS", "RELAY_REDIS"):
            variables |= self.authority.variables(table)
        return variables


@pytest.fixture
def fleet(server_directory: Path) -> Iterator[Secured]:
    with Secured(server_directory) as fleet:
        yield fleet


def test_an_event_comes_through_and_nobody_gets_to_know_a_secret(fleet: Secured) -> None:
    told = [fleet.relay("db", "upgrade"), fleet.relay("streams", "ensure"), fleet.relay("health")]
    assert told[-1].count("ok  ") == 5
    fleet.query("land", python_effects.TABLE)
    fleet.service.verdict = lambda body, _n: 422 if body["payload"]["n"] == 7 else 200
    fleet.scheduler()
    fleet.worker()
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        events = [
            Event(
                event_type="vibe_created",
                event_version=1 + n % 2,
                aggregate_type="vibe",
                aggregate_id=f"v{n}",
                payload={"n": n},
            )
            for n in range(40)
        ]
        ids = Outbox("vibespro").add_many(connection, events)
    wait_for("all are handled by the service", lambda: all(fleet.service.count(id) for id in ids))
    effects = "SELECT count(DISTINCT message_id) FROM effects"
    wait_for("all are handled by the functions", lambda: fleet.query("land", effects) == [(len(ids),)])
    [alert] = wait_for("somebody is told of the one that was refused", lambda: fleet.service.alerts)
    assert alert["incidents"][0]["message_id"] == str(ids[7])
    told += [fleet.relay("config"), fleet.relay("reconcile")]
    assert fleet.service.strangers == []
    assert [front.turned_away for front in fleet.fronts] == [0, 0, 0]
    assert all(front.served for front in fleet.fronts)
    written = "\n".join([*told, fleet.log("worker"), fleet.log("scheduler")])
    seed = (fleet.directory / "secrets" / "nats.creds").read_text().splitlines()[-2]
    for secret in (PASSWORD, "p%40ss", TOKEN, SIGNING, VALKEY, seed):
        assert secret not in written
