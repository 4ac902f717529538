"""The NATS users of deploy/nats: each can do its work, and destroy nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import nats.errors
import pytest
from typer.testing import CliRunner

from relay.adapters.jetstream import topology
from relay.adapters.jetstream.connection import NatsConnection, connect_once
from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor, StreamReader
from relay.cli import create_app
from relay.domain.policies import Published
from relay.settings import Settings, load_settings
from tests.integration.deployed import DEPLOY, LockedNats

pytestmark = pytest.mark.anyio

STREAM, DURABLE = "VIBESPRO_EVENTS", "sea__from_vibespro"
ADVISORIES = f"relay__{STREAM}__{DURABLE}"
PATIENCE = 20.0
ENVIRONMENT = {"DATABASE_URL": "postgresql://localhost/{context}"}
#: The one server of the test keeps one copy of each stream, as docker-compose.yml says it of its own.
ONE_SERVER = {
    f"RELAY_CONTEXTS__{context}__{stream}__REPLICAS": "1"
    for context in ("VIBESPRO", "SEA")
    for stream in ("STREAM", "DLQ")
}


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load_settings(DEPLOY / "relay.toml", ENVIRONMENT | ONE_SERVER)


@pytest.fixture(scope="module")
def server(server_root: Path, settings: Settings) -> Iterator[LockedNats]:
    async def ensure() -> None:
        async with connect_once(server.url_of("relay_admin"), inbox_prefix=server.inbox_of("relay_admin")) as js:
            assert await topology.ensure(js, settings.streams(), settings.consumers())
            assert await topology.ensure(js, settings.streams(), settings.consumers()) == []
            assert await topology.diff(js, settings.streams(), settings.consumers()) == []
            assert await topology.show(js, settings.streams(), settings.consumers())

    with LockedNats(server_root / "locked-nats") as server:
        asyncio.run(ensure())
        yield server


@asynccontextmanager
async def connected(server: LockedNats, user: str) -> AsyncIterator[tuple[Any, asyncio.Queue[str]]]:
    """A client, and what the server refuses it."""
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def note(error: Exception) -> None:
        await refused.put(str(error).lower())

    client = await nats.connect(server.url_of(user), error_cb=note, inbox_prefix=server.inbox_of(user))
    try:
        yield client, refused
    finally:
        await client.close()


def printed(config: Path) -> str:
    result = CliRunner().invoke(
        create_app(), ["streams", "permissions"], env={**ENVIRONMENT, "RELAY_CONFIG": str(config)}
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_file_is_what_the_command_prints() -> None:
    assert (DEPLOY / "nats" / "permissions.conf").read_text() == printed(DEPLOY / "relay.toml")


def test_another_subscription_changes_what_is_printed(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(
        (DEPLOY / "relay.toml").read_text()
        + '[contexts.sea.subscriptions.more]\nstream = "OTHERS"\nfilter_subject = "others.>"\nhandler = "http://h/"\n'
    )
    assert "$JS.ACK.OTHERS.sea__more.>" in printed(config)


async def test_the_fleet_does_all_its_duties(server: LockedNats) -> None:
    connection = NatsConnection(server.url, inbox_prefix=server.inbox_of("relay"))
    refused: list[str] = []
    try:
        client = await connection.client()
        client._error_cb = lambda error: refused.append(str(error)) or asyncio.sleep(0)
        publisher = NatsJetStreamPublisher(connection)
        for subject in ("vibespro.event.case.v1", "sea.event.x.v1", "sea.dlq.vibespro.event.case.v1"):
            found = await publisher.publish(subject, b"{}", {"Nats-Msg-Id": str(uuid4())})
            assert type(found) is Published
        consumer = NatsJetStreamConsumer(connection, stream=STREAM, durable=DURABLE)
        [delivery] = await consumer.fetch(10, timedelta(seconds=5))
        await consumer.in_progress([delivery.reply])
        await consumer.nak([delivery.reply], timedelta(0))
        [again] = await consumer.fetch(10, timedelta(seconds=5))
        await consumer.ack([again.reply])
        async with asyncio.timeout(PATIENCE):
            while (await consumer.state()).ack_floor != again.stream_seq:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.02)
        await NatsJetStreamConsumer(connection, stream="RELAY_ADVISORIES", durable=ADVISORIES).fetch(
            1, timedelta(milliseconds=50)
        )
        letters = NatsJetStreamConsumer(connection, stream="SEA_DLQ", durable="relay__sea__dead_letters")
        [letter] = await letters.fetch(10, timedelta(seconds=5))
        await letters.terminate([letter.reply], "over")
        auditor = NatsStreamAuditor(connection)
        for stream in (STREAM, "SEA_EVENTS"):
            assert await auditor.state(stream)
            assert len(await auditor.stored(stream, 1, 10)) == 1
        reader = StreamReader(connection, stream=STREAM, durable=DURABLE, filter_subject="vibespro.event.>")
        found = await reader.next(1)
        assert found
        assert found.body == b"{}"
        await client.jetstream().account_info()
        await client.flush()
    finally:
        await connection.close()
    assert refused == []


FORBIDDEN_TO_THE_FLEET = [
    f"$JS.API.STREAM.DELETE.{STREAM}",
    f"$JS.API.STREAM.PURGE.{STREAM}",
    f"$JS.API.STREAM.MSG.DELETE.{STREAM}",
    f"$JS.API.STREAM.UPDATE.{STREAM}",
    "$JS.API.STREAM.CREATE.MINE",
    f"$JS.API.STREAM.SNAPSHOT.{STREAM}",
    f"$JS.API.STREAM.RESTORE.{STREAM}",
    f"$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}",
    "$JS.API.CONSUMER.DELETE.RELAY_ADVISORIES.x",
    "$JS.API.CONSUMER.CREATE.SEA_DLQ.mine",
    "$JS.API.CONSUMER.MSG.NEXT.VIBESPRO_DLQ.mine",
    "$JS.API.ACCOUNT.PURGE.$G",
    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.VIBESPRO_EVENTS.sea__from_vibespro",
    f"$JS.ACK.{STREAM}.another.1.1.1.0.0",
    f"$JS.ACK._.acc.{STREAM}.another.1.1.1.0.0.x",
    f"$JS.ACK.OTHERS.{DURABLE}.1.1.1.0.0",
    "others.event.case.v1",
    "$SYS.REQ.SERVER.PING",
]
FORBIDDEN_TO_THE_ADMIN = [
    f"$JS.API.STREAM.DELETE.{STREAM}",
    f"$JS.API.STREAM.PURGE.{STREAM}",
    f"$JS.API.STREAM.MSG.GET.{STREAM}",
    f"$JS.API.CONSUMER.DELETE.{STREAM}.{DURABLE}",
    f"$JS.API.CONSUMER.CREATE.{STREAM}.mine",
    f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{DURABLE}",
    f"$JS.ACK.{STREAM}.{DURABLE}.1.1.1.0.0",
    "vibespro.event.case.v1",
    "$JS.API.STREAM.CREATE.MINE",
]


@pytest.mark.parametrize(
    ("user", "subject"),
    [("relay", subject) for subject in FORBIDDEN_TO_THE_FLEET]
    + [("relay_admin", subject) for subject in FORBIDDEN_TO_THE_ADMIN],
)
async def test_publishing_elsewhere_is_refused(server: LockedNats, user: str, subject: str) -> None:
    async with connected(server, user) as (client, refused):
        await client.publish(subject, b"{}")
        told = await asyncio.wait_for(refused.get(), PATIENCE)
        assert "permissions violation" in told
        assert subject.lower() in told


@pytest.mark.parametrize("user", ["relay", "relay_admin"])
@pytest.mark.parametrize(
    "subject", [">", "vibespro.>", "$JS.>", "$SYS.>", "sea.event.case.v1", "_INBOX.>", "_INBOX_root.>"]
)
async def test_listening_in_is_refused(server: LockedNats, user: str, subject: str) -> None:
    async with connected(server, user) as (client, refused):
        await client.subscribe(subject)
        told = await asyncio.wait_for(refused.get(), PATIENCE)
        assert "permissions violation for subscription" in told


async def test_a_forged_acknowledgement_of_anothers_consumer_is_lost(server: LockedNats) -> None:
    async with connected(server, "root") as (root, _):
        js = root.jetstream()
        await js.add_consumer(STREAM, durable_name="observer", ack_policy="explicit")
        await js.publish("vibespro.event.case.v1", b"{}")

        async def open_messages() -> int:
            info = await js.consumer_info(STREAM, "observer")
            return int(info.num_pending + info.num_ack_pending)

        subscription = await js.pull_subscribe_bind("observer", stream=STREAM)
        before = await open_messages()
        [message] = await subscription.fetch(1, timeout=5)
        async with connected(server, "relay") as (fleet, refused):
            await fleet.publish(message.reply, b"+ACK")
            assert message.reply.lower() in await asyncio.wait_for(refused.get(), PATIENCE)
        assert await open_messages() == before
        await message.ack_sync()
        assert await open_messages() == before - 1


async def test_nobody_else_gets_in(server: LockedNats) -> None:
    for login in ("", "relay:wrong@", "relay_admin@"):
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
            await nats.connect(f"nats://{login}127.0.0.1:{server.port}", allow_reconnect=False)
