"""Clients of Redis with few connections, and what its errors mean."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import redis
import redis.exceptions
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from relay.adapters.redis_keys import wrong_type
from relay.domain.errors import QueueUnreachable

Answer = TypeVar("Answer")

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
    if wrong_type(error):
        message = "a key of ours in Redis holds another type of value"
        return QueueUnreachable(message, hint="relay health names it: delete it, nothing is lost")
    return QueueUnreachable(f"Redis is not reachable: {error}")


@contextmanager
def reaching() -> Iterator[None]:
    """Turn errors of Redis into QueueUnreachable."""
    try:
        yield
    except redis.exceptions.RedisError as error:
        raise queue_error(error) from error


async def reached(command: Awaitable[Answer]) -> Answer:
    """The answer to a command. Raises QueueUnreachable."""
    with reaching():
        return await command
