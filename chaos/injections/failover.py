"""Faults of a PostgreSQL with a replica: each ends with a replica again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from chaos.stage import Heal, Stage, lasting
from chaos.topologies.paired import PairedRig


def _rig(stage: Stage) -> PairedRig:
    assert isinstance(stage.rig, PairedRig)
    return stage.rig


@lasting
def primary_killed(stage: Stage, _target: str) -> Heal:
    """SIGKILL to the primary; the replica takes over."""
    rig = _rig(stage)
    rig.postgres.kill()
    rig.fail_over()
    return rig.pair.join


@lasting
def primary_frozen(stage: Stage, _target: str) -> Heal:
    """SIGSTOP to the primary; the replica takes over while the old one still holds its connections."""
    rig = _rig(stage)
    rig.postgres.pause()
    rig.fail_over()
    return rig.pair.join


@lasting
def switched_over(stage: Stage, _target: str) -> Heal:
    """A clean stop of the primary; the replica takes over, as for an upgrade of the machine."""
    rig = _rig(stage)
    rig.postgres.stop()
    rig.fail_over()
    return rig.pair.join


@contextmanager
def replica_killed(stage: Stage, _target: str) -> Iterator[None]:
    """SIGKILL to the replica: commits wait until the primary is told to go on alone."""
    pair = _rig(stage).pair
    pair.replica.kill()
    try:
        yield
        pair.part()
    finally:
        pair.join()
