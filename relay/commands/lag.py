"""Reads the lag of a context: its tables and the consumers of its subscriptions, at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from relay.domain.errors import BrokerUnreachable, DatabaseUnreachable, RelayError
from relay.domain.lag import ContextLag, StreamLag, TablesLag
from relay.ports import JetStreamConsumer

Answer = TypeVar("Answer")

_TIMEOUT_S: Final = 3.0
#: How many contexts are read at the same time when all are asked for. Each takes a connection.
CONTEXTS_AT_ONCE: Final = 8


class ReadLag:
    """The lag of one context. Reading takes no locks and changes nothing.

    ``tables`` raises DatabaseUnreachable and SchemaMissing. ``consumers``: one for each subscription. A server
    that takes longer to answer than ``timeout`` seconds counts as away.
    """

    def __init__(
        self,
        context: str,
        tables: Callable[[], Awaitable[TablesLag]],
        consumers: Mapping[str, JetStreamConsumer],
        *,
        timeout: float = _TIMEOUT_S,
    ) -> None:
        self._context, self._tables, self._consumers, self._timeout = context, tables, consumers, timeout

    async def read(self) -> ContextLag:
        """Read everything within some seconds. Raises no RelayError: a part that cannot be read is the error."""
        away = DatabaseUnreachable(f"context {self._context}: no answer within {self._timeout:g} s")
        streams = asyncio.gather(*(self._stream(name) for name in self._consumers))
        tables, lags = await asyncio.gather(self._answer(self._tables(), away), streams)
        streams_by_name = dict(zip(self._consumers, lags, strict=True))
        return ContextLag(context=self._context, tables=tables, streams=streams_by_name)

    async def _stream(self, name: str) -> StreamLag | RelayError:
        away = BrokerUnreachable(f"subscription {name}: no answer within {self._timeout:g} s")
        state = await self._answer(self._consumers[name].state(), away)
        if isinstance(state, RelayError):
            return state
        return StreamLag(pending=state.undelivered, unacknowledged=state.pending)

    async def _answer(self, query: Awaitable[Answer], away: RelayError) -> Answer | RelayError:
        try:
            async with asyncio.timeout(self._timeout):
                return await query
        except RelayError as error:
            return error
        except TimeoutError:
            return away


async def read_all(contexts: Iterable[ReadLag]) -> list[ContextLag]:
    """Read the lag of many contexts, `CONTEXTS_AT_ONCE` at a time."""
    room = asyncio.Semaphore(CONTEXTS_AT_ONCE)

    async def read(context: ReadLag) -> ContextLag:
        async with room:
            return await context.read()

    return await asyncio.gather(*map(read, contexts))
