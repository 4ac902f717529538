"""Faults of a PostgreSQL with a replica: each ends with a replica again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from chaos.stage import Heal, Injection, Stage, lasting
from chaos.topologies.paired import PairedRig
from relay.devstack import PostgresServer


def _rig(stage: Stage) -> PairedRig:
    assert isinstance(stage.rig, PairedRig)
    return stage.rig


def _taken_over(leave: Callable[[PostgresServer], object]) -> Injection:
    """Return the injection in which the primary leaves, the replica takes over, and a replica joins again."""

    @lasting
    def inject(stage: Stage, _target: str) -> Heal:
        rig = _rig(stage)
        leave(rig.postgres)
        rig.fail_over()
        return rig.pair.join

    return inject


#: SIGKILL to the primary.
primary_killed: Final = _taken_over(PostgresServer.kill)
#: SIGSTOP to the primary, which still holds its connections when the replica takes over.
primary_frozen: Final = _taken_over(PostgresServer.pause)
#: A clean stop of the primary, as for an upgrade of the machine.
switched_over: Final = _taken_over(PostgresServer.stop)


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
