"""The rig with three NATS nodes, of which each has a copy of every stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from chaos.proxy import Link, at_port
from chaos.rig import Rig
from chaos.sampler import Fetched, fetched
from chaos.topologies.cluster import NODES, NatsCluster
from relay.devstack import DevStack, Server
from relay.devstack.http_checks import connected_clients, pulled_consumers

_NATS: Final = NatsCluster.name


class ClusteredStack(DevStack):
    """A development stack whose NATS is a cluster."""

    def __init__(self, directory: Path | str = ".relay") -> None:
        super().__init__(directory)
        self.cluster = NatsCluster(self.directory)
        self.nats = self.cluster  # type: ignore[assignment] # a stack asks nothing that a cluster cannot do


class ClusteredRig(Rig):
    """A link to NATS leads to every node, a port each: clients find one that answers by themselves."""

    make_servers: ClassVar[type[DevStack]] = ClusteredStack
    topology: ClassVar[str] = "cluster"
    replicas: ClassVar[int] = NODES

    @property
    def cluster(self) -> NatsCluster:
        """The nodes."""
        assert isinstance(self.stack, ClusteredStack)
        return self.stack.cluster

    def on_small_disks(self) -> Sequence[Server]:
        """PostgreSQL: of the nodes one at a time may be away, for whatever reason."""
        return (self.postgres,)

    def ports_of(self, server: str) -> tuple[int, ...]:
        """The ports of every node."""
        if server == _NATS:
            return tuple(node.port for node in self.cluster.nodes)
        return super().ports_of(server)

    def address(self, server: str, link: Link | None) -> str:
        """Every node, separated by commas."""
        if server == _NATS and link is not None:
            nodes = zip(self.cluster.nodes, link.ports, strict=True)
            return ",".join(at_port(node.url, port) for node, port in nodes)
        return super().address(server, link)

    def clients(self) -> Counter[str]:
        """Count the connections to all nodes by the names of clients."""
        return sum((connected_clients(node.monitor_url) for node in self.cluster.running), Counter[str]())

    def pulled(self) -> set[tuple[str, str]]:
        """Return stream and name of each consumer that is pulled; its leader knows."""
        return {found for node in self.cluster.running for found in pulled_consumers(node.monitor_url)}

    def fetched(self) -> Fetched:
        """How far each subscription has fetched, as the leaders of their consumers tell."""
        delivered, pending = dict[str, int](), dict[str, int]()
        for node in self.cluster.running:
            of_node = fetched(node.monitor_url, node.server_name)
            delivered |= of_node[0] or {}
            pending |= of_node[1] or {}
        return (delivered, pending) if delivered else (None, None)
