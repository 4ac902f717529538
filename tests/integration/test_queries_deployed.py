"""Queries as they are deployed: the stream that keeps them, their rights, and what `relay health` says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy
from typer.testing import CliRunner

from relay import RemoteQueries
from relay.adapters.jetstream.connection import NatsConnection, connect_once
from relay.adapters.jetstream.topology import diff, ensure
from relay.bus import Nothing, Some
from relay.cli import create_app
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.topology import StreamSpec
from tests.integration.asking import Service, heard
from tests.integration.deployed import LockedNats

pytestmark = pytest.mark.anyio

CONFIG = """\
[contexts.sea]
[contexts.sea.queries]
module = "myapp.queries"
subjects = ["{prefix}.queries.>"]
"""


@pytest.fixture
async def js(nats_server: NatsServer) -> AsyncIterator[JetStreamContext]:
    async with connect_once(nats_server.url) as context:
        yield context


async def test_a_stream_begins_and_ends_to_confirm_as_it_is_declared(js: JetStreamContext) -> None:
    name = f"Q{uuid4().hex[:8]}"
    spec = StreamSpec(name=name, subjects=(f"{name}.>",), max_age=timedelta(days=1), max_bytes=10**6, no_ack=True)
    await ensure(js, [spec], [])
    assert await diff(js, [spec], []) == []
    for wanted in (replace(spec, no_ack=False), spec):
        [found] = await diff(js, [wanted], [])
        assert (found.field, found.changeable) == ("no_ack", True)
        [change] = await ensure(js, [wanted], [])
        assert (change.action, change.fields) == ("updated", ("no_ack",))
        assert await diff(js, [wanted], []) == []


def run(config: Path, *arguments: str, **more: str) -> str:
    environment = {"DATABASE_URL": "postgresql://localhost/{context}", "RELAY_CONFIG": str(config), **more}
    return CliRunner().invoke(create_app(), [*arguments], env=environment).stdout


class Printed(LockedNats):
    """A server with the users that `relay streams permissions` prints for a configuration."""

    permissions = ""

    def _permissions(self) -> str:
        return self.permissions


async def test_the_rights_that_are_printed_are_enough_to_answer(server_directory: Path, tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(CONFIG.format(prefix="sr"))
    server = Printed(server_directory / "nats")
    server.permissions = await asyncio.to_thread(run, config, "streams", "permissions")
    assert "allow_responses: true" in server.permissions
    with server:
        service = Service(server.root_url, prefix="sr")
        connection = NatsConnection(server.url, inbox_prefix=server.inbox_of("relay"))
        answers = service.answers(connection)
        await answers.start()
        async with RemoteQueries(server.root_url) as queries:
            await heard(queries, service.find)
            # More answers than one, after the looks of one who waits.
            assert await queries.ask(service.find, {"loop_id": "none"}) == Nothing()
            assert await queries.ask(service.inspect, {"what": "puback"}) == Some({"stream": "SR", "seq": 7})
        assert (await connection.client()).refusals.latest() is None
        await answers.stop()
        await connection.close()


def test_without_queries_nobody_may_answer_anything(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text("[contexts.sea]\n")
    assert "allow_responses" not in run(config, "streams", "permissions")


async def test_a_stream_that_would_answer_is_warned_of(
    js: JetStreamContext, nats_server: NatsServer, valkey: ValkeyServer, tmp_path: Path
) -> None:
    prefix = f"sr{uuid4().hex[:8]}"
    config = tmp_path / "relay.toml"
    config.write_text(CONFIG.format(prefix=prefix))

    async def warnings() -> list[str]:
        servers = {"NATS_URL": nats_server.url, "REDIS_URL": valkey.url}
        servers["RELAY_NATS__MONITOR"] = nats_server.monitor_url
        found = json.loads(await asyncio.to_thread(run, config, "health", "--json", **servers))
        return next(list(it["warnings"]) for it in found if it["server"] == "nats")

    assert await warnings() == []
    made = {"subjects": [f"{prefix}.queries.loop.*"], "discard": DiscardPolicy.NEW}
    await js.add_stream(name=prefix.upper(), **made)
    [warning] = await warnings()
    assert warning == f"stream {prefix.upper()} answers queries of {prefix}.queries.> itself; set no_ack = true"
    await js.update_stream(name=prefix.upper(), no_ack=True, **made)
    assert await warnings() == []
