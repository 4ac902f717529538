"""Servers that stand in for each other: what the chaos run of a cluster and of a fail-over rests on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from random import Random

import nats
import psycopg
import pytest
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, StreamConfig

from chaos import tables
from chaos.faults import FAULTS
from chaos.history import History
from chaos.rig import Rig
from chaos.stage import Stage
from chaos.topologies import RIGS
from chaos.topologies.cluster import NatsCluster
from chaos.topologies.pair import PostgresPair
from chaos.workload import Workload
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from tests.chaos.test_nemeses import OF_MANY_SERVERS
from tests.waiting import eventually, wait_for


async def stored(js: JetStreamContext, number: int) -> None:
    """Publish until somebody has taken it: while a leader is elected, nobody answers."""
    headers = {"Nats-Msg-Id": f"{id(js)}-{number}"}

    async def taken() -> bool:
        try:
            await js.publish("s", b"x", headers=headers, timeout=5)
        except (nats.errors.Error, TimeoutError):
            return False
        return True

    await eventually("the stream takes a message", taken)


@pytest.fixture
def cluster(server_root: Path) -> Iterator[NatsCluster]:
    cluster = NatsCluster(server_root / f"cluster-{uuid.uuid4().hex[:8]}")
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def pair(server_root: Path) -> Iterator[PostgresPair]:
    pair = PostgresPair(server_root / f"pair-{uuid.uuid4().hex[:8]}")
    pair.start()
    yield pair
    pair.stop()


def test_a_whole_batch_from_another_node_is_no_error(cluster: NatsCluster) -> None:
    """A node that does not lead a consumer says that a batch is complete, maybe before its last message came."""

    async def read_all() -> int:
        client = await nats.connect(servers=cluster.url.split(","), connect_timeout=2)
        js = client.jetstream(timeout=10)
        await js.add_stream(StreamConfig(name="B", subjects=["b"], num_replicas=3))
        await js.add_consumer("B", ConsumerConfig(durable_name="d", max_ack_pending=50))
        for _ in range(1_000):
            await js.publish("b", b"x")
        found = await js.consumer_info("B", "d")
        assert found.cluster is not None
        others = [node for node in cluster.nodes if node.server_name != found.cluster.leader]
        connection = NatsConnection(others[0].url, name="tests")
        consumer, count = NatsJetStreamConsumer(connection, stream="B", durable="d"), 0
        try:
            while count < 1_000:
                messages = await consumer.fetch(50, timedelta(seconds=2))
                count += len(messages)
                await consumer.ack([message.reply for message in messages])
        finally:
            await connection.close()
            await client.close()
        return count

    assert asyncio.run(read_all()) == 1_000


def test_a_stream_of_three_replicas_goes_on_when_its_leader_is_killed(cluster: NatsCluster) -> None:
    async def fill(count: int, create: bool) -> int:
        client = await nats.connect(servers=cluster.url.split(","), connect_timeout=2)
        try:
            js = client.jetstream(timeout=10)
            if create:
                await js.add_stream(StreamConfig(name="S", subjects=["s"], num_replicas=3))
            for number in range(count):
                await stored(js, number)
            return (await js.stream_info("S")).state.messages
        finally:
            await client.close()

    assert asyncio.run(fill(10, create=True)) == 10
    leader = cluster.leader_of("S")
    assert leader is not None
    leader.kill()
    wait_for("there is another leader", lambda: cluster.leader_of("S") not in (None, leader))
    assert asyncio.run(fill(5, create=False)) == 15
    leader.start()
    assert cluster.leader_of("S") is not None


def committed(pair: PostgresPair) -> list[int]:
    with pair.primary.connect() as connection:
        return [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")]


def test_a_replica_takes_over_with_all_that_was_committed_and_gets_a_replica_itself(pair: PostgresPair) -> None:
    with pair.primary.connect() as connection:
        connection.execute("CREATE TABLE t (n int)")
        for n in range(100):
            connection.execute("INSERT INTO t VALUES (%s)", [n])
        old = pair.primary
        old.pause()
    pair.fail_over()
    assert pair.primary is not old
    assert committed(pair) == list(range(100))
    with pair.primary.connect() as connection:
        connection.execute("INSERT INTO t VALUES (100)")
    pair.join()
    assert pair.replica is old
    pair.primary.restart()  # its commits wait for the replica, and it must not begin with one
    assert committed(pair) == list(range(101))
    pair.primary.kill()
    pair.fail_over()
    assert committed(pair) == list(range(101))


def test_a_commit_waits_for_the_replica_until_the_primary_is_told_to_go_on_alone(pair: PostgresPair) -> None:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with pair.primary.connect() as connection, pair.primary.connect() as other, ThreadPoolExecutor() as pool:
        connection.execute("CREATE TABLE t (n int)")
        pair.replica.kill()
        done = pool.submit(connection.execute, "INSERT INTO t VALUES (1)")
        wait_for("the commit waits", lambda: other.execute(waiting).fetchone())
        pair.part()
        done.result(timeout=30)
        connection.execute("INSERT INTO t VALUES (2)")


@pytest.mark.parametrize(
    ("topology", "kinds"),
    [
        ("cluster", ["node-kill", "leader-change"]),
        ("failover", ["failover-kill", "replica-kill"]),
        pytest.param("cluster", ["node-stop", "node-freeze", "leader-kill"], marks=pytest.mark.soak),
        pytest.param("failover", ["failover-freeze", "failover-planned"], marks=pytest.mark.soak),
    ],
)
def test_a_fleet_publishes_and_handles_after_each_fault(
    server_root: Path, topology: str, kinds: list[str]
) -> None:
    own = {name for name, kind in FAULTS.items() if name.startswith(OF_MANY_SERVERS) and name in kinds}
    assert own == set(kinds)
    with RIGS[topology](server_root / f"{topology}-{kinds[0]}", workers=1, schedulers=1, seed=1) as rig:
        tables.prepare(rig.urls, seed=1)
        assert all(FAULTS[kind].targets(rig) for kind in kinds)
        rig.launch()
        with (
            closing(History(rig.history / "run.jsonl")) as history,
            Workload(rig.producer_url, history, seed=1, threads=1, rate=40, batch=10),
        ):
            for number, kind in enumerate(kinds):
                FAULTS[kind].strike(
                    Stage(rig, Random(number), history, number, hold=(1.0, 1.0)), *targets(rig, kind)
                )
                goes_on(rig)


def targets(rig: Rig, kind: str) -> tuple[str, ...]:
    return tuple(FAULTS[kind].targets(rig))


def goes_on(rig: Rig) -> None:
    published = "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL"
    handled = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL"
    before = {name: count(rig.urls[name], query) for name, query in (("shop", published), ("sea", handled))}
    wait_for(
        "events are published and handled",
        lambda: (
            count(rig.urls["shop"], published) > before["shop"] + 20
            and count(rig.urls["sea"], handled) > before["sea"] + 20
        ),
    )


def count(url: str, query: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
        return int(row[0]) if row else 0
