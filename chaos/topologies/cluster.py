"""Three NATS nodes, of which one may be away: JetStream goes on as long as two agree."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from relay.devstack.http_checks import get
from relay.devstack.nats import NatsServer
from relay.devstack.ports import LOOPBACK, free_port

NODES: Final = 3


@dataclass(frozen=True, slots=True)
class Routes:
    """How the nodes of a cluster find each other: a port for each, and a password of this run."""

    ports: tuple[int, ...]
    password: str

    @classmethod
    def fresh(cls, nodes: int) -> Routes:
        """Routes at free ports."""
        return cls(tuple(free_port() for _ in range(nodes)), secrets.token_hex(16))


class NatsNode(NatsServer):
    """One node of a cluster. ``place``: which of the routes is its own."""

    def __init__(self, directory: Path | str, routes: Routes, place: int) -> None:
        super().__init__(directory, server_name=f"node-{place + 1}")
        self._routes, self._place = routes, place

    def _configuration(self) -> str:
        routes = [f"nats://route:{self._routes.password}@{LOOPBACK}:{port}" for port in self._routes.ports]
        # no_advertise: clients keep to the addresses they were given, which lead through the proxy.
        return f"""{super()._configuration()}
cluster {{
  name: jetrelay-chaos
  listen: "{LOOPBACK}:{self._routes.ports[self._place]}"
  authorization {{ user: route, password: "{self._routes.password}" }}
  no_advertise: true
  routes: {json.dumps(routes)}
}}
"""


class NatsCluster:
    """The nodes together. Each starts and stops by itself, as any server does. Safe to call from any thread."""

    name: Final = "nats"

    def __init__(self, directory: Path, nodes: int = NODES) -> None:
        routes = Routes.fresh(nodes)
        self.nodes = tuple(NatsNode(directory / f"nats-{n + 1}", routes, n) for n in range(nodes))

    @property
    def url(self) -> str:
        """Where clients connect: every node, separated by commas."""
        return ",".join(node.url for node in self.nodes)

    @property
    def monitor_url(self) -> str:
        """The monitoring of a node that runs. It shows only that node's own data of streams."""
        return next(iter(self.running)).monitor_url

    @property
    def running(self) -> list[NatsNode]:
        """The nodes whose processes are there."""
        return [node for node in self.nodes if node.running]

    def launch(self) -> None:
        """Begin to start all nodes, because a single node would not report itself healthy."""
        for node in self.nodes:
            node.launch()

    def wait(self) -> None:
        """Return once every node answers."""
        for node in self.nodes:
            node.wait()

    def start(self) -> None:
        """Start all nodes and return once each answers."""
        self.launch()
        self.wait()

    def stop(self) -> None:
        """Stop all nodes."""
        for node in self.nodes:
            node.stop()

    def leader_of(self, stream: str) -> NatsNode | None:
        """Return the node that leads a stream; None while nobody does, as far as the others know."""
        for node in self.running:
            answer = get(f"{node.monitor_url}/jsz?streams=true")
            for account in json.loads(answer or "{}").get("account_details", ()):
                for detail in account.get("stream_detail", ()):
                    leader = detail.get("cluster", {}).get("leader")
                    if detail["name"] == stream and leader:
                        return next(other for other in self.nodes if other.server_name == leader)
        return None
