"""Operators' questions to the servers of all contexts: the members of the fleet, streams and consumers."""

from __future__ import annotations

from collections.abc import Sequence

from relay.adapters.dramatiq.gates import Gates
from relay.adapters.jetstream import topology
from relay.adapters.jetstream.topology import Difference, StreamView
from relay.adapters.members import Members
from relay.bus import Query, QueryBus
from relay.credentials import jetstream, redis_options
from relay.domain.members import Seen
from relay.settings import Settings


class ListMembers(Query[Sequence[Seen]]):
    """Every process of the fleet with a heartbeat in the last ten minutes, and what it does."""


class ShowStreams(Query[Sequence[StreamView]]):
    """What streams hold and how far their consumers have come, of one ``context`` or all."""

    context: str | None = None


class DiffStreams(Query[Sequence[Difference]]):
    """How streams and consumers on the broker differ from the configuration."""

    context: str | None = None


def answer_for_servers(bus: QueryBus, settings: Settings) -> QueryBus:
    """Register the answers of these queries with a bus; returns the bus."""

    @bus.handles(ListMembers)
    async def members(_query: ListMembers) -> Sequence[Seen]:
        gates = Gates(settings.redis_url.get_secret_value(), settings.redis_namespace, **redis_options(settings))
        try:
            return await Members(gates.client, settings.redis_namespace).all()
        finally:
            await gates.aclose()

    @bus.handles(ShowStreams)
    async def show(query: ShowStreams) -> Sequence[StreamView]:
        streams, consumers = settings.streams(query.context), settings.consumers(query.context)
        async with jetstream(settings) as js:
            return await topology.show(js, streams, consumers)

    @bus.handles(DiffStreams)
    async def diff(query: DiffStreams) -> Sequence[Difference]:
        streams, consumers = settings.streams(query.context), settings.consumers(query.context)
        async with jetstream(settings) as js:
            return await topology.diff(js, streams, consumers)

    return bus
