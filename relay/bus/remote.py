"""The queries of a module that other services may ask, and how they are answered."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relay.bus.messages import Query
from relay.bus.queries import QueryBus
from relay.bus.result import Maybe
from relay.domain.errors import InvalidHandler


@dataclass(frozen=True, slots=True)
class Answerable:
    """A query with a subject, and the bus that answers it. ``waits``: its handler is a coroutine function."""

    kind: type[Query[Any]]
    bus: QueryBus
    waits: bool

    def query(self, fields: Mapping[str, Any]) -> Query[Any]:
        """The query that was asked. Unknown fields are ignored, so that the asking service may be newer.

        Raises InvalidQuery.
        """
        known = {name for key, field in self.kind.model_fields.items() for name in (key, field.alias)}
        return self.kind(**{name: value for name, value in fields.items() if name in known})

    def ask(self, query: Query[Any]) -> Maybe[Any]:
        """Answer in this thread. Raises what the handler raises."""
        return self.bus.ask(query)

    async def ask_async(self, query: Query[Any]) -> Maybe[Any]:
        """Answer on the event loop. Raises what the handler raises."""
        return await self.bus.ask_async(query)


def load(module: str, takes: Callable[[str], bool]) -> dict[str, Answerable]:
    """Import a module; return the queries with a subject of the buses in it, by their subjects.

    ``takes``: whether a subject is one of those that the context answers. Raises InvalidHandler when the module is
    missing, offers no query, or offers one twice or at another subject.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise _invalid(f"there is no module {module!r}", "is it on PYTHONPATH?") from None
    offered: dict[str, Answerable] = {}
    for bus in {id(it): it for it in vars(found).values() if isinstance(it, QueryBus)}.values():
        for subject, kind in bus.subjects.items():
            if subject in offered:
                raise _invalid(f"{module} answers {subject} twice", "only one bus may answer a query")
            if not takes(subject):
                raise _invalid(
                    f"{module} answers {subject}, which is not among the subjects", "add it to subjects"
                )
            offered[subject] = Answerable(kind, bus, bus.waits(kind))
    if not offered:
        raise _invalid(f"{module} answers no query", "give a subject: @bus.handles(FindCase, subject=…)")
    return offered


def _invalid(message: str, hint: str) -> InvalidHandler:
    return InvalidHandler(message, field="queries", hint=hint)
