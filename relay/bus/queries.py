"""QueryBus: answers queries without a transaction.

queries = QueryBus()

@queries.handles(FindCase)
def find_case(query: FindCase) -> CaseView | None: ...

queries.ask(FindCase(id=id))                       # Some(CaseView(...)) or Nothing()

With ``@queries.handles(FindCase, subject="cases.queries.case.find")`` other services may ask it, too.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from relay.bus.context import RequestContext
from relay.bus.errors import DuplicateHandler
from relay.bus.messages import Query
from relay.bus.registry import BusRegistry, complete
from relay.bus.result import Maybe, as_maybe
from relay.domain.errors import InvalidHandler
from relay.domain.subject import check_subject

Answer = TypeVar("Answer")
Function = TypeVar("Function", bound=Callable[..., Any])


class QueryBus:
    """Finds the handler of a query and calls it. None from a handler means that it found nothing."""

    def __init__(self) -> None:
        self._handlers: BusRegistry[Query[Any]] = BusRegistry("query", units=False)
        #: The queries that other services may ask, by their subjects.
        self.subjects: dict[str, type[Query[Any]]] = {}

    def handles(self, query: type[Query[Any]], *, subject: str | None = None) -> Callable[[Function], Function]:
        """Register a function of one parameter for a query, plain or async.

        ``subject``: where other services ask it, see `relay.RemoteQueries`. Raises DuplicateHandler if the query
        or the subject already has a handler, InvalidHandler if the function cannot be called in this way, and
        InvalidSubject.
        """
        if subject is not None and check_subject(subject, "subject") in self.subjects:
            taken = self.subjects[subject].__name__
            raise DuplicateHandler(f"{subject} is the subject of {taken} already", field="subject")

        def register(function: Function) -> Function:
            self._handlers.put(query, function)
            if subject is not None:
                self.subjects[subject] = query
            return function

        return register

    def waits(self, query: type[Query[Any]]) -> bool:
        """Whether a query's handler is a coroutine function, so that it needs an event loop."""
        function = self._handlers.of(query).function
        return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))

    def ask(self, query: Query[Answer]) -> Maybe[Answer]:
        """Answer a query. Raises NoHandler and everything that the handler raises."""
        return complete(self.ask_async(query))

    async def ask_async(self, query: Query[Answer]) -> Maybe[Answer]:
        """Answer a query whose handler may wait."""
        handler = self._handlers.find(query)
        with RequestContext.current_or_new().use():
            return cast("Maybe[Answer]", as_maybe(await handler.call(query)))


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


def load_queries(module: str, takes: Callable[[str], bool]) -> dict[str, Answerable]:
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
