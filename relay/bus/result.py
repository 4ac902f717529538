"""The results of commands and queries, as values to match on.

match bus.dispatch(OpenCase(title="no light")):
    case Ok(case_id): ...
    case Failed(error): ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar

from relay.bus.errors import NothingFound
from relay.domain.errors import DomainError

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ok(Generic[Value_co]):
    """The command succeeded."""

    value: Value_co

    def unwrap(self) -> Value_co:
        """Return the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Failed:
    """A business rule refused the command; nothing was written. The error's ``code`` names the rule."""

    error: DomainError

    @property
    def code(self) -> str:
        """The stable code of the error."""
        return self.error.code

    def unwrap(self) -> NoReturn:
        """Raise the error. In a subscriber, the message then becomes a dead letter."""
        raise self.error


@dataclass(frozen=True, slots=True)
class Some(Generic[Value_co]):
    """The query found something."""

    value: Value_co

    def unwrap(self) -> Value_co:
        """Return the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Nothing:
    """The query found nothing."""

    def unwrap(self) -> NoReturn:
        """Raise NothingFound."""
        raise NothingFound("the query found nothing", hint="match on Some and Nothing if that may happen")


#: Generic aliases: ``Result[UUID]``, ``Maybe[CaseView]``.
Result: TypeAlias = "Ok[Value] | Failed"
Maybe: TypeAlias = "Some[Value] | Nothing"
NOTHING: Final = Nothing()


def as_result(value: Any) -> Ok[Any] | Failed:
    """Turn what a handler returned into a Result. A value that is not a Result counts as success."""
    return value if isinstance(value, Ok | Failed) else Ok(value)


def as_maybe(value: Any) -> Some[Any] | Nothing:
    """Turn what a handler returned into a Maybe. None counts as Nothing."""
    if isinstance(value, Some | Nothing):
        return value
    return NOTHING if value is None else Some(value)
