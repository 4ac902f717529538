"""The rig with a PostgreSQL whose replica takes over; links lead to the current primary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from chaos import deployment
from chaos.proxy import at_port
from chaos.rig import Rig
from chaos.topologies.pair import PostgresPair
from relay.devstack import DevStack, PostgresServer, Server

_POSTGRES: Final = "postgres"
#: The link of the sampler and the checker, which no fault touches.
_WATCH: Final = "watch-postgres"


class PairedStack(DevStack):
    """A development stack whose PostgreSQL has a replica."""

    def __init__(self, directory: Path | str = ".relay") -> None:
        self.pair = PostgresPair(Path(directory).absolute())
        super().__init__(directory)

    @property
    def postgres(self) -> PostgresServer:
        """The primary."""
        return self.pair.primary

    @postgres.setter
    def postgres(self, _only: PostgresServer) -> None:
        """A stack makes one server; this one has two."""

    def start(self) -> None:
        """Start all servers, the replica last: it is a copy of the primary."""
        super().start()
        try:
            self.pair.follow()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all servers, the replica first."""
        self.pair.replica.stop()
        super().stop()


class PairedRig(Rig):
    """Links to PostgreSQL lead to the primary, as a virtual address does."""

    make_servers: ClassVar[type[DevStack]] = PairedStack
    topology: ClassVar[str] = "failover"

    @property
    def pair(self) -> PostgresPair:
        """Both servers."""
        assert isinstance(self.stack, PairedStack)
        return self.stack.pair

    @property
    def urls(self) -> dict[str, str]:
        """The databases by name on the current primary, for the sampler and the checker."""
        if _WATCH not in self.links:
            self.links[_WATCH] = self.open_link(_WATCH, _POSTGRES)
        server = at_port(self.postgres.url, self.links[_WATCH].port)
        return {name: deployment.database_url(server, name) for name in deployment.DATABASES}

    def on_small_disks(self) -> Sequence[Server]:
        """NATS: the data of PostgreSQL are made anew with each replica."""
        return (self.nats,)

    def fail_over(self) -> None:
        """Let the replica take over, and lead every link to it."""
        self.pair.fail_over()
        for name, link in self.links.items():
            if name.endswith(f"-{_POSTGRES}"):
                link.retarget(self.postgres.port)
