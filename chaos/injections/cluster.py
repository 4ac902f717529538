"""Faults of a NATS cluster: one node away at a time, and leaders that change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import nats.errors
from nats.js import JetStreamContext

from chaos.deployment import STREAM
from chaos.stage import Heal, Stage, lasting
from chaos.topologies.cluster import NatsCluster, NatsNode
from chaos.topologies.clustered import ClusteredRig
from relay.adapters.jetstream.connection import connect_once
from relay.domain.errors import BrokerUnreachable

_STEP_DOWN_SECONDS = 3.0


def _cluster(stage: Stage) -> NatsCluster:
    assert isinstance(stage.rig, ClusteredRig)
    return stage.rig.cluster


def _any(stage: Stage) -> NatsNode:
    node = stage.random.choice(_cluster(stage).nodes)
    stage.note(node.server_name)
    return node


@lasting
def node_killed(stage: Stage, _target: str) -> Heal:
    """SIGKILL to a node; started again after a while."""
    node = _any(stage)
    node.kill()
    return node.start


@lasting
def node_stopped(stage: Stage, _target: str) -> Heal:
    """A clean stop of a node, a later start."""
    node = _any(stage)
    node.stop()
    return node.start


@contextmanager
def node_frozen(stage: Stage, _target: str) -> Iterator[None]:
    """SIGSTOP to a node: its connections stay open, and the others elect leaders without it."""
    node = _any(stage)
    try:
        node.pause()
        yield
    finally:
        node.resume()
        node.wait()


@lasting
def leader_killed(stage: Stage, _target: str) -> Heal:
    """SIGKILL to the node that leads the stream of the events."""
    node = _cluster(stage).leader_of(STREAM) or _any(stage)
    stage.note(node.server_name)
    node.kill()
    return node.start


@contextmanager
def leaders_changed(stage: Stage, _target: str) -> Iterator[None]:
    """The leaders of the stream and of its consumers step down."""
    # While a leader is elected, nobody can be asked to step down.
    with suppress(BrokerUnreachable, nats.errors.Error):
        stage.note(f"{asyncio.run(_step_down(_cluster(stage).url))} leaders")
    yield


async def _step_down(url: str) -> int:
    async with connect_once(url) as js:
        names = [info.name for info in await js.consumers_info(STREAM)]
        subjects = [
            f"STREAM.LEADER.STEPDOWN.{STREAM}",
            *(f"CONSUMER.LEADER.STEPDOWN.{STREAM}.{it}" for it in names),
        ]
        return sum([await _stepped_down(js, subject) for subject in subjects])


async def _stepped_down(js: JetStreamContext, subject: str) -> bool:
    try:
        await js._nc.request(f"$JS.API.{subject}", b"", timeout=_STEP_DOWN_SECONDS)  # noqa: SLF001 - it hides its client
    except (nats.errors.Error, TimeoutError):
        return False
    return True
