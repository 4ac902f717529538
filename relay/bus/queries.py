"""QueryBus: answers queries without a transaction.

queries = QueryBus()

@queries.handles(FindCase)
def find_case(query: FindCase) -> CaseView | None: ...

queries.ask(FindCase(id=id))                       # Some(CaseView(...)) or Nothing()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from relay.bus.context import RequestContext
from relay.bus.handlers import Registry, complete
from relay.bus.messages import Query
from relay.bus.result import Maybe, as_maybe

Answer = TypeVar("Answer")
Function = TypeVar("Function", bound=Callable[..., Any])


class QueryBus:
    """Finds the handler of a query and calls it. None from a handler means that it found nothing."""

    def __init__(self) -> None:
        self._handlers: Registry[Query[Any]] = Registry("query", units=False)

    def handles(self, query: type[Query[Any]]) -> Callable[[Function], Function]:
        """Register a function of one parameter for a query, plain or async.

        Raises DuplicateHandler if the query already has a handler, and InvalidHandler if the function cannot be
        called in this way.
        """

        def register(function: Function) -> Function:
            self._handlers.put(query, function)
            return function

        return register

    def ask(self, query: Query[Answer]) -> Maybe[Answer]:
        """Answer a query. Raises NoHandler and everything that the handler raises."""
        return complete(self.ask_async(query))

    async def ask_async(self, query: Query[Answer]) -> Maybe[Answer]:
        """Answer a query whose handler may wait."""
        handler = self._handlers.find(query)
        with RequestContext.current_or_new().use():
            return cast("Maybe[Answer]", as_maybe(await handler.call(query)))
