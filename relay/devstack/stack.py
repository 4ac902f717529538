"""The three servers together: what ``relay dev`` and ``relay demo`` run on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path
from typing import IO, Self

from relay.devstack import private_files
from relay.devstack.errors import StackBusy
from relay.devstack.nats import NatsServer
from relay.devstack.postgres import PostgresServer
from relay.devstack.server import Server
from relay.devstack.valkey import ValkeyServer


class DevStack:
    """PostgreSQL, nats-server and Valkey below one directory, for one process at a time.

    Before the new servers start, those that a killed predecessor left behind are ended. Data and ports stay.
    """

    def __init__(self, directory: Path | str = ".relay") -> None:
        self.directory = Path(directory).absolute()
        self.postgres = PostgresServer(self.directory / "postgres")
        self.nats = NatsServer(self.directory / "nats")
        self.valkey = ValkeyServer(self.directory / "valkey")
        self._claim: IO[str] | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers. The slowest to start is last."""
        return (self.nats, self.valkey, self.postgres)

    def start(self) -> None:
        """Start all servers at the same time and return once each answers; does nothing for those that run.

        Raises StackBusy if another process runs a stack in this directory, ServerFailed or MissingExtraError
        as ``Server.start`` does. After an error nothing is left running.
        """
        with self._lock:
            self._claim_directory()
            try:
                for server in self.servers:
                    server.launch()
                for server in self.servers:
                    server.wait()
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Stop all servers and release the directory. May be called at any time, any number of times."""
        with self._lock, contextlib.ExitStack() as last:
            last.callback(self._release_directory)
            for server in self.servers:
                last.callback(server.stop)  # each is stopped even if another cannot be

    def _claim_directory(self) -> None:
        """Hold a lock that the system releases when this process ends, in whatever way."""
        if self._claim is not None:
            return
        private_files.make_directory(self.directory)
        claim = os.fdopen(private_files.opener(str(self.directory / "lock"), os.O_RDWR | os.O_CREAT), "r+")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            claim.seek(0)
            owner = claim.read().strip() or "unknown"
            claim.close()
            raise StackBusy(f"process {owner} runs a stack in {self.directory}") from error
        claim.truncate(0)
        claim.write(str(os.getpid()))
        claim.flush()
        self._claim = claim

    def _release_directory(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None
