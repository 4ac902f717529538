"""The keys of personal values over NATS: workers of a context answer for them at ``relay.keys.<context>``.

An answer holds wrapped keys only. Without a master key they are of no use.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from pydantic import BaseModel, Field

from relay.adapters.jetstream.query_client import RemoteQueries
from relay.bus import Query, QueryBus, Some
from relay.bus.errors import QueryFailed
from relay.bus.queries import Answerable
from relay.domain.errors import InvalidSubject, KeysUnreachable
from relay.domain.querying import keys_subject
from relay.ports.subject_keys import SubjectKeys, WrappedKey

#: How long an answer may take.
QUERY_TIMEOUT: Final = timedelta(seconds=5)


class FoundKey(BaseModel):
    """A key in an answer: ``wrapped`` is base64, or null if the person was forgotten."""

    id: UUID
    master: str
    wrapped: str | None


class FoundKeys(BaseModel):
    """The keys that there are."""

    keys: list[FoundKey]


class FindKeys(Query[FoundKeys]):
    """Keys by their ids."""

    ids: list[UUID] = Field(max_length=1_000)


class NatsSubjectKeys:
    """The keys of another context."""

    def __init__(self, queries: RemoteQueries, context: str) -> None:
        self._queries, self._subject = queries, keys_subject(context)

    async def find(self, ids: Sequence[UUID]) -> Sequence[WrappedKey]:
        """See the port."""
        try:
            found = await self._queries.ask(self._subject, FindKeys(ids=list(ids)), answer=FoundKeys)
        except (QueryFailed, InvalidSubject) as error:
            raise KeysUnreachable(error.message, hint="does a worker of the context run?") from None
        if not isinstance(found, Some):
            return []
        return [
            WrappedKey(it.id, it.master, None if it.wrapped is None else b64decode(it.wrapped))
            for it in found.value.keys
        ]


def answering(context: str, keys: SubjectKeys) -> dict[str, Answerable]:
    """What answers for the keys of a context."""
    bus, subject = QueryBus(), keys_subject(context)

    @bus.handles(FindKeys, subject=subject)
    async def find(asked: FindKeys) -> FoundKeys:
        found = await keys.find(asked.ids)
        return FoundKeys(
            keys=[
                FoundKey(
                    id=it.id,
                    master=it.master,
                    wrapped=None if it.wrapped is None else b64encode(it.wrapped).decode(),
                )
                for it in found
            ]
        )

    return {subject: Answerable(FindKeys, bus, waits=True)}
