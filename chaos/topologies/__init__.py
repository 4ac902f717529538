"""Arrangements of servers: one of each, a cluster of NATS nodes, a PostgreSQL with a replica that takes over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.rig import Rig
from chaos.topologies.clustered import ClusteredRig
from chaos.topologies.paired import PairedRig

#: By the name that a user gives.
RIGS: Final[Mapping[str, type[Rig]]] = {rig.topology: rig for rig in (Rig, ClusteredRig, PairedRig)}
