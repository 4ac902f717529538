"""Reads the lag of a context: its tables and the consumers of its subscriptions, at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from relay.domain.errors import BrokerUnreachable, DatabaseUnreachable, RelayError
from relay.domain.lag import ContextLag, StreamLag, TablesLag
from relay.ports import JetStreamConsumer

Answer = TypeVar("Answer")

#: A server that takes longer to answer counts as away, in seconds.
_TIMEOUT_S: Final = 3.0
#: How many contexts are read at the same time when all are asked for. Each takes a connection.
CONTEXTS_AT_ONCE: Final = 8


class ReadLag:
    """The lag of one context. Reading takes no locks and changes nothing.

    ``tables`` raises DatabaseUnreachable and SchemaMissing. ``consumers``: one for each subscription.
    """

    def __init__(
        self,
        context: str,
        tables: Callable[[], Awaitable[TablesLag]],
        consumers: Mapping[str, JetStreamConsumer],
    ) -> None:
        self._context, self._tables, self._consumers = context, tables, consumers

    async def read(self) -> ContextLag:
        """Read everything within some seconds. Raises no RelayError: a part that cannot be read is the error."""
        away = DatabaseUnreachable(f"context {self._context}: no answer within {_TIMEOUT_S:g} s")
        streams = asyncio.gather(*(self._stream(name) for name in self._consumers))
        tables, found = await asyncio.gather(_answered(self._tables(), away), streams)
        streams_by_name = dict(zip(self._consumers, found, strict=True))
        return ContextLag(context=self._context, tables=tables, streams=streams_by_name)

    async def _stream(self, name: str) -> StreamLag | RelayError:
        away = BrokerUnreachable(f"subscription {name}: no answer within {_TIMEOUT_S:g} s")
        state = await _answered(self._consumers[name].state(), away)
        if isinstance(state, RelayError):
            return state
        return StreamLag(pending=state.undelivered, unacknowledged=state.pending)


async def read_all(contexts: Iterable[ReadLag]) -> list[ContextLag]:
    """Read the lag of many contexts, `CONTEXTS_AT_ONCE` at a time."""
    room = asyncio.Semaphore(CONTEXTS_AT_ONCE)

    async def read(context: ReadLag) -> ContextLag:
        async with room:
            return await context.read()

    return await asyncio.gather(*map(read, contexts))


async def _answered(asked: Awaitable[Answer], away: RelayError) -> Answer | RelayError:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await asked
    except RelayError as error:
        return error
    except TimeoutError:
        return away
