"""The errors of buses, remote queries and units of work. They are part of the tree in `relay.domain.errors`."""

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


class QueryFailed(RelayError):
    """The service that answers a query has refused it, or has failed.

    ``remote`` is the code that came back: INVALID_QUERY, MALFORMED_QUERY, QUERY_BUSY, QUERY_FAILED,
    INVALID_ANSWER, ANSWER_TOO_LARGE, or the code of a `DomainError` of the handler.
    """

    code = "QUERY_FAILED"

    def __init__(self, message: str, *, remote: str = "QUERY_FAILED", **more: str | None) -> None:
        super().__init__(message, **more)
        self.remote = remote


class QueryTimeout(QueryFailed):
    """A query of another service had no answer in time. It may be asked again."""

    code = "QUERY_TIMEOUT"


class NoResponder(QueryFailed):
    """Nobody answers this query: no such service runs, or the process that had begun to answer has ended."""

    code = "NO_RESPONDER"


class AnsweredByStream(QueryFailed):
    """A stream took the query and confirmed it, before the service could answer."""

    code = "ANSWERED_BY_STREAM"


class InvalidAnswer(QueryFailed):
    """The answer of another service is not JSON, or does not fit the declared type."""

    code = "INVALID_ANSWER"


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
