"""Choose TCP ports that stay ours while the server behind them is down."""

from __future__ import annotations

import random
import socket

from relay.devstack.errors import DevStackError

LOOPBACK = "127.0.0.1"
# Below the range that Linux (32768+) and macOS (49152+) use for outgoing connections. While its server is down,
# any connection of the machine could take a port of that range. A client that keeps reconnecting can even connect
# to itself.
_CANDIDATES = range(18_000, 32_000)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on; raises DevStackError if there is none."""
    for port in random.sample(_CANDIDATES, k=200):
        if is_free(port):
            return port
    raise DevStackError(f"no free port between {_CANDIDATES.start} and {_CANDIDATES.stop}")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: old connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
