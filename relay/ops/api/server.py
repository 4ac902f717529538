"""Serves the API at an address. Refuses an address at which anybody could call without a token."""

from __future__ import annotations

import os
import socket

from relay.domain.errors import ConfigurationError, InvalidRequest
from relay.ops.api.access import Door, is_loopback
from relay.ops.api.app import create_app
from relay.ops.api.connections import BoundedConfig, BoundedServer, ConnectionLimits, fitting
from relay.settings import Settings


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigurationError if the address needs users and there are none."""
    check_address(settings, host)
    server_of(create_app(settings), host, port, fitting(ConnectionLimits())).run()


def server_of(app: Door, host: str, port: int, limits: ConnectionLimits) -> BoundedServer:
    """A server of an application that `create_app` has made."""
    config = BoundedConfig(
        app,
        limits,
        host=host,
        port=port,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_graceful_shutdown=5,
    )
    return BoundedServer(config)


def check_free(host: str, port: int) -> None:
    """Raise InvalidRequest if the address is in use: uvicorn would log this without a code, and end."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise InvalidRequest(
            f"cannot listen at {host}, port {port}: {reason}",
            field="--port",
            hint="stop what listens there, or choose others with --port and --host",
        ) from None


def check_address(settings: Settings, host: str) -> None:
    """Raise ConfigurationError if other machines could call, and no token is required."""
    if not settings.ops.users and not is_loopback(host):
        raise ConfigurationError(
            f"{host} can be reached from outside, and nobody needs a token",
            field="ops.users",
            hint="add a user with a token, or listen at 127.0.0.1",
        )
