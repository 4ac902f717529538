"""Clients of Redis with few connections, and what its errors mean."""

from __future__ import annotations

from typing import Any, Final

import redis
import redis.exceptions
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from relay.domain.errors import QueueUnreachable

#: How long a command may wait for a free connection, in seconds. It takes so long only in an outage.
CONNECTION_WAIT_S: Final = 5.0


def bounded_client(url: str, most: int, **access: Any) -> redis.Redis:
    """A client with at most so many connections; threads wait for a free one. ``access`` goes to the client."""
    pool = redis.BlockingConnectionPool.from_url(
        url,
        **access,
        max_connections=most,
        timeout=CONNECTION_WAIT_S,
        socket_timeout=5,
        socket_connect_timeout=2,
        socket_keepalive=True,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), 2),
    )
    return redis.Redis.from_pool(pool)


def queue_error(error: redis.exceptions.RedisError) -> QueueUnreachable:
    """Say whether Redis is away, or answers and refuses. The text of its error holds no secret."""
    match error:
        case redis.exceptions.NoPermissionError():
            return QueueUnreachable(f"Redis refuses this user: {error}", hint="grant it: see ACL LOG")
        case redis.exceptions.AuthenticationError() | redis.exceptions.AuthorizationError():
            return QueueUnreachable(f"Redis refuses the credentials: {error}", hint="see [redis] and redis_url")
        case _ if "SSL" in str(error) or "certificate" in str(error):
            return QueueUnreachable(f"Redis: no TLS connection: {error}", hint="see [redis]")
    return QueueUnreachable(f"Redis is not reachable: {error}")
