"""NATS servers that demand something: each way to prove oneself, and what is said when it is not accepted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import struct
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path

import nkeys
import pytest

from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.jetstream.refusals import Refusal
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.jetstream.topology import ensure
from relay.credentials import jetstream, nats_options
from relay.domain.errors import BrokerRefused, BrokerUnreachable, ConfigurationError
from relay.domain.policies import Published
from relay.domain.topology import StreamSpec
from relay.settings import Settings, load_settings
from tests.secured import Authority, GuardedNats, Operator, Pair, nats_tls
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

Start = Callable[..., GuardedNats]
STREAM = StreamSpec(name="SEA_EVENTS", subjects=("sea.event.>",), max_age=None, max_bytes=1024**2)
#: For an answer, where none comes.
PATIENCE = timedelta(seconds=120)
USERS = 'authorization { users: [{user: relay, password: "p@ss/w:rd"}] }'


@pytest.fixture
def start(server_directory: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda guard, scheme="nats": stack.enter_context(GuardedNats(server_directory, guard, scheme))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def settings(url: str, **environment: str) -> Settings:
    database = {"RELAY_CONTEXTS__SEA__DATABASE_URL": "postgresql://nowhere/sea"}
    return load_settings(environ={"NATS_URL": url, **database, **environment})


@asynccontextmanager
async def connected(known: Settings) -> AsyncIterator[NatsConnection]:
    connection = NatsConnection(known.nats_url.get_secret_value(), **nats_options(known))
    try:
        yield connection
    finally:
        await connection.close()


async def published(known: Settings) -> None:
    """Use both kinds of connection: that of a command, and that of a worker."""
    async with jetstream(known) as js:
        await ensure(js, [STREAM], [])
    async with connected(known) as connection:
        assert isinstance(await NatsJetStreamPublisher(connection).publish("sea.event.x.v1", b"{}", {}), Published)


async def refused(known: Settings) -> str:
    """What both kinds of connection say."""
    with pytest.raises(BrokerUnreachable) as once:
        async with jetstream(known):
            pass
    async with connected(known) as connection:
        with pytest.raises(BrokerUnreachable) as kept:
            await connection.client()
    assert once.type is kept.type
    return f"{once.value} / {kept.value}"


@pytest.mark.parametrize(
    "environment",
    [
        {"NATS_USER": "relay", "NATS_PASSWORD": "p@ss/w:rd"},
        {"RELAY_NATS__USER": "relay", "RELAY_NATS__PASSWORD": "p@ss/w:rd"},
        {},
    ],
    ids=["variables of nats", "our own", "in the URL"],
)
async def test_user_and_password(start: Start, environment: dict[str, str]) -> None:
    url = start(USERS).url
    await published(settings(url if environment else url.replace("//", "//relay:p%40ss%2Fw%3Ard@"), **environment))


async def test_a_wrong_password_is_no_server_that_is_away(start: Start) -> None:
    said = await refused(settings(start(USERS).url, NATS_USER="relay", NATS_PASSWORD="wr0ng"))
    assert said.count("BROKER_REFUSED: NATS refuses the credentials") == 2
    assert "wr0ng" not in said


async def test_a_token_in_a_file(start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    url = start("authorization { token: s3cret }").url
    await published(settings(url, NATS_TOKEN_FILE=str(tmp_path / "token")))
    assert "BROKER_REFUSED" in await refused(settings(url))


async def test_an_nkey(start: Start, tmp_path: Path) -> None:
    pair, stranger = (Pair.make(nkeys.PREFIX_BYTE_USER) for _ in range(2))
    for name, each in (("seed", pair), ("stranger", stranger)):
        (tmp_path / name).write_text(f"{each.seed}\n")
    url = start(f"authorization {{ users: [{{nkey: {pair.public}}}] }}").url
    await published(settings(url, NATS_NKEY=str(tmp_path / "seed")))
    assert "BROKER_REFUSED" in await refused(settings(url, NATS_NKEY=str(tmp_path / "stranger")))


async def test_a_creds_file(start: Start, tmp_path: Path) -> None:
    operator, creds = Operator(), tmp_path / "user.creds"
    operator.write_creds(creds)
    Operator().write_creds(tmp_path / "stranger.creds")
    url = start(operator.configuration).url
    await published(settings(url, NATS_CREDS=str(creds)))
    assert "BROKER_REFUSED" in await refused(settings(url, NATS_CREDS=str(tmp_path / "stranger.creds")))


async def test_a_creds_file_that_was_renewed_holds_from_the_next_connect(start: Start, tmp_path: Path) -> None:
    operator, creds = Operator(), tmp_path / "user.creds"
    operator.write_creds(creds, exp=int(time.time()) + 2)
    server = start(operator.configuration)
    async with connected(settings(server.url, NATS_CREDS=str(creds))) as connection:
        first = await connection.client()
        down = asyncio.Event()
        connection.on_down.append(down.set)
        creds.write_text("half written")
        await asyncio.wait_for(down.wait(), 60)  # the server ends what has expired
        with pytest.raises(BrokerUnreachable, match=r"user\.creds"):
            await connection.client()
        operator.write_creds(creds)
        up = asyncio.Event()
        connection.on_up.append(up.set)
        await asyncio.wait_for(up.wait(), 60)
        assert (await connection.client()).is_connected
        assert first.is_closed or first is await connection.client()


@pytest.mark.parametrize("text", ["", "no markers", "-----BEGIN NATS USER JWT-----\nx\n"])
def test_what_is_no_creds_file_is_a_wrong_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "creds").write_text(text)
    with pytest.raises(ConfigurationError, match="creds is not a creds file") as caught:
        nats_options(settings("nats://localhost", NATS_CREDS=str(tmp_path / "creds")))
    assert caught.value.field == "nats.credentials"


def test_a_seed_that_is_none_is_a_wrong_configuration(tmp_path: Path) -> None:
    (tmp_path / "seed").write_text("SUnotaseed")
    with pytest.raises(ConfigurationError) as caught:
        nats_options(settings("nats://localhost", NATS_NKEY=str(tmp_path / "seed")))
    assert caught.value.field == "nats.nkey"
    assert "SUnotaseed" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="/nowhere/seed") as unread:
        nats_options(settings("nats://localhost", NATS_NKEY="/nowhere/seed"))
    assert unread.value.field == "nats.nkey"


# --- TLS ---


@pytest.mark.parametrize("first", [False, True], ids=["upgrade", "handshake-first"])
async def test_tls_with_a_certificate_on_both_sides(start: Start, authority: Authority, first: bool) -> None:
    url = start(nats_tls(authority, "handshake_first: true" if first else ""), "tls").url
    begin = {"RELAY_NATS__TLS_FIRST": "true"} if first else {}
    await published(settings(url, **authority.variables("RELAY_NATS"), **begin))
    without = settings(url, NATS_CA=str(authority.ca), **begin)
    said = await refused(without)
    assert said.count("TLS") >= 2 or said.count("certificate") >= 2
    distrustful = authority.variables("RELAY_NATS") | {"RELAY_NATS__CA": str(authority.stranger)}
    said = await refused(settings(url, **distrustful, **begin))
    assert said.count("no TLS connection") == 2
    assert said.count("CERTIFICATE_VERIFY_FAILED") == 2


async def test_a_server_that_closes_after_the_handshake_is_not_away(authority: Authority) -> None:
    """As nats-server does without the client's certificate, when the reset overtakes its alert."""
    greeting = json.dumps({"server_id": "x", "max_payload": 1, "tls_required": True, "tls_verify": True})
    context = authority.demanding()
    context.verify_mode = ssl.CERT_NONE

    async def close_early(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.write(f"INFO {greeting}\r\n".encode())
        await writer.drain()
        await writer.start_tls(context)
        writer.transport.abort()

    async with await asyncio.start_server(close_early, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        said = await refused(settings(f"tls://localhost:{port}", NATS_CA=str(authority.ca)))
    assert said.count("no TLS connection: the server closed it after the handshake") == 2
    assert said.count("demands a certificate that it trusts (see ca, certificate and key of [nats])") == 2


async def test_what_was_refused_before_a_connection_does_not_explain_its_loss() -> None:
    lost, numbers = asyncio.Event(), count(1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(numbers)
        if number <= 2:
            writer.write(b'INFO {"server_id": "x", "max_payload": 1000}\r\n')
            await reader.readuntil(b"PING\r\n")
            writer.write(b"-ERR 'Authorization Violation'\r\n" if number == 1 else b"PONG\r\n")
            await writer.drain()
            if number == 2:
                await lost.wait()
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", number > 1, 0))
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = NatsConnection(f"nats://127.0.0.1:{port}")
        up, down = asyncio.Event(), asyncio.Event()
        connection.on_up.append(up.set)
        connection.on_down.append(down.set)
        connection.start()
        await asyncio.wait_for(up.wait(), 60)
        lost.set()
        await asyncio.wait_for(down.wait(), 60)
        with pytest.raises(BrokerUnreachable) as told:
            await connection.client()
        await connection.close()
    assert "credentials" not in str(told.value)


async def test_nothing_is_proved_to_a_server_without_tls_where_tls_is_configured(
    start: Start, authority: Authority
) -> None:
    server = start(USERS)
    user = {"NATS_USER": "relay", "NATS_PASSWORD": "p@ss/w:rd"}
    said = await refused(settings(server.url, NATS_CA=str(authority.ca), **user))
    assert said.count("offers no TLS") == 2
    assert "offers no TLS" in await refused(settings(server.url.replace("nats://", "tls://"), **user))
    with urllib.request.urlopen(f"{server.monitor_url}/connz?state=any&auth=true") as answer:  # noqa: ASYNC210
        seen = json.load(answer)["connections"]
    assert len(seen) >= 4
    assert not [one for one in seen if one.keys() & {"authorized_user", "name"}]  # CONNECT never came


@pytest.mark.parametrize(
    "url", ["TLS://relay:s3cret@{0}", "tls://relay:s3cret@127.0.0.1:1,nats://relay:s3cret@{0}"]
)
async def test_no_server_without_tls_hears_a_password_if_one_address_demands_tls(url: str) -> None:
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "max_payload": 1000, "auth_required": true}\r\n')
        heard.extend(await reader.read())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        said = await refused(settings(url.format(f"127.0.0.1:{port}")))
    assert "offers no TLS" in said
    assert bytes(heard) == b""


# --- permissions ---

PERMISSIONS = """
authorization {{ users: [
  {{user: admin, password: a}}
  {{user: relay, password: r, permissions: {{publish: {publish}, subscribe: {subscribe}}}}}
] }}
"""


@asynccontextmanager
async def limited(start: Start, publish: str, subscribe: str, **environment: str) -> AsyncIterator[NatsConnection]:
    url = start(PERMISSIONS.format(publish=publish, subscribe=subscribe)).url
    async with jetstream(settings(url, NATS_USER="admin", NATS_PASSWORD="a")) as js:
        await ensure(js, [STREAM], [])
    async with connected(settings(url, NATS_USER="relay", NATS_PASSWORD="r", **environment)) as connection:
        yield connection


async def test_a_subject_that_may_not_be_published_is_named_and_others_go_on(start: Start) -> None:
    async with limited(start, '["sea.event.ok.>"]', '["_INBOX.>"]') as connection:
        publisher = NatsJetStreamPublisher(connection, ack_timeout=PATIENCE)
        client = await connection.client()
        async with asyncio.timeout(PATIENCE.total_seconds() / 2):
            outcome = await publisher.publish("sea.event.No.v1", b"{}", {})
        assert getattr(outcome, "error", "").endswith(" publish sea.event.No.v1"), outcome
        assert isinstance(await publisher.publish("sea.event.ok.v1", b"{}", {}), Published)
        assert await connection.client() is client


async def test_a_pull_that_may_not_be_asked_for_is_named(start: Start) -> None:
    async with limited(start, '["sea.event.>"]', '["_INBOX.>"]') as connection:
        consumer = NatsJetStreamConsumer(connection, stream="SEA_EVENTS", durable="sea__own")
        async with asyncio.timeout(25):  # and not when the request is over
            with pytest.raises(BrokerRefused, match=r"publish \$JS.API.CONSUMER.MSG.NEXT.SEA_EVENTS.sea__own$"):
                await consumer.fetch(10, timedelta(seconds=30))


async def test_a_request_that_is_refused_is_no_time_out(start: Start) -> None:
    async with limited(start, '["sea.event.>"]', '["_INBOX.>"]') as connection:
        with pytest.raises(BrokerRefused, match=r"publish \$JS.API.STREAM.INFO.SEA_EVENTS"):
            await NatsStreamAuditor(connection).state("SEA_EVENTS")


async def test_acknowledgements_are_granted_all_together(start: Start) -> None:
    async with limited(start, '["sea.event.>"]', '["_INBOX.>"]') as connection:
        told = asyncio.Event()
        refusals: list[Refusal] = []
        connection.on_refused += [refusals.append, lambda _: len(refusals) == 2 and told.set()]
        consumer = NatsJetStreamConsumer(connection, stream="SEA_EVENTS", durable="sea__own")
        await consumer.ack([f"$JS.ACK.SEA_EVENTS.sea__own.1.{n}.{n}.0.0" for n in (1, 2)])
        await asyncio.wait_for(told.wait(), 60)
        assert {found.grant for found in refusals} == {"$JS.ACK.SEA_EVENTS.sea__own.>"}
        assert [found.first for found in refusals] == [True, False]


async def test_a_command_says_what_is_not_granted(start: Start) -> None:
    url = start(PERMISSIONS.format(publish='["sea.event.>"]', subscribe='["_INBOX.>"]')).url
    with pytest.raises(BrokerRefused, match=r"publish \$JS.API.STREAM.INFO.SEA_EVENTS"):
        async with jetstream(settings(url, NATS_USER="relay", NATS_PASSWORD="r")) as js:
            await ensure(js, [STREAM], [])


async def test_an_inbox_of_its_own(start: Start) -> None:
    own = {"NATS_INBOX_PREFIX": "_INBOX_relay"}
    async with limited(start, '["sea.event.>", "$JS.API.>"]', '["_INBOX_relay.>"]', **own) as connection:
        assert isinstance(await NatsJetStreamPublisher(connection).publish("sea.event.x.v1", b"{}", {}), Published)
        assert await NatsStreamAuditor(connection).state("SEA_EVENTS")


async def test_an_inbox_that_is_shut_is_named_and_found_open_once_it_is_granted(
    start: Start, server_directory: Path
) -> None:
    async with limited(start, '[">"]', '["_INBOX_relay.>"]') as connection:
        publisher = NatsJetStreamPublisher(connection, ack_timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE.total_seconds() / 2):
            outcome = await publisher.publish("sea.event.x.v1", b"{}", {})
        assert "grant it: subscribe _INBOX.>, or give it an inbox_prefix of its own" in str(outcome)
        with pytest.raises(BrokerRefused, match="inbox_prefix"):
            await connection.client()
        path = server_directory / "nats.conf"
        path.write_text(path.read_text().replace('["_INBOX_relay.>"]', '["_INBOX.>"]'))
        os.kill(int(json.loads((server_directory / "server.json").read_text())["pid"]), signal.SIGHUP)

        async def published() -> bool:
            with suppress(BrokerUnreachable):
                return isinstance(await publisher.publish("sea.event.x.v1", b"{}", {}), Published)
            return False

        await eventually("it publishes", published)
