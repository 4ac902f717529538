"""What the buses and units of work refuse. Part of the tree in `relay.domain.errors`."""

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
    """A command or query has exactly one handler, and this would be the second."""

    code = "DUPLICATE_HANDLER"


class CommitRefused(RelayError):
    """A handler ended the transaction, which is the unit of work's to end; everything is rolled back."""

    code = "COMMIT_REFUSED"


class NestedCommand(RelayError):
    """A command was dispatched inside of another's transaction, and nobody said that it belongs there."""

    code = "NESTED_COMMAND"


class EndlessEvents(RelayError):
    """Domain events lead to further ones without end; everything is rolled back."""

    code = "ENDLESS_EVENTS"


class NothingFound(RelayError, LookupError):
    """A query's answer was taken for granted, and there is none."""

    code = "NOTHING_FOUND"
