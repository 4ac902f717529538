"""The errors of the buses and units of work. They are part of the tree in `relay.domain.errors`."""

from __future__ import annotations

from relay.domain.errors import RelayError


class InvalidCommand(RelayError, ValueError):
    """A command breaks its own rules, so it was not constructed."""

    code = "INVALID_COMMAND"
    quotes = True


class InvalidQuery(RelayError, ValueError):
    """A query breaks its own rules, so it was not constructed."""

    code = "INVALID_QUERY"
    quotes = True


class NoHandler(RelayError, LookupError):
    """No handler is registered for a command or query."""

    code = "NO_HANDLER"


class DuplicateHandler(RelayError):
    """A command or query must have exactly one handler; this would be the second."""

    code = "DUPLICATE_HANDLER"


class CommitRefused(RelayError):
    """A handler ended the transaction. Only the unit of work may end it. Everything is rolled back."""

    code = "COMMIT_REFUSED"


class NestedCommand(RelayError):
    """A command was dispatched inside the transaction of another command without joining it explicitly."""

    code = "NESTED_COMMAND"


class EndlessEvents(RelayError):
    """Domain events lead to further domain events without end. Everything is rolled back."""

    code = "ENDLESS_EVENTS"


class NothingFound(RelayError, LookupError):
    """The answer of a query was unwrapped, but the query found nothing."""

    code = "NOTHING_FOUND"
