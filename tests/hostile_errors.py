"""Exceptions as applications may raise them: they are no `Exception`, or their methods fail, or they are huge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NoReturn

from dramatiq.errors import RateLimitExceeded
from dramatiq.middleware import Shutdown, TimeLimitExceeded
from dramatiq.middleware.threading import Interrupt

from relay.domain.errors import DomainError

MANY: Final = 10**6


class TimeIsUp(BaseException):
    """As a library may have its own."""


class Mute(Exception):
    def __str__(self) -> str:
        raise NotImplementedError

    __repr__ = __str__


class Furious(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class SaysNoText(Exception):
    def __str__(self) -> Any:
        return 5  # noqa: PLE0307 - that is its point


class Closed(Exception):
    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(name)


class Exits(Exception):
    @property
    def orig(self) -> NoReturn:
        raise SystemExit(3)


class Faceless(Exception):
    def __getattribute__(self, name: str) -> NoReturn:
        raise ValueError(name)


class OwnErrors(Exception):
    error_count = 1

    def errors(self) -> list[int]:
        return [5]


class HugeState(Exception):
    sqlstate = "5" * MANY + "\0"


class Unequal(Exception):
    def __eq__(self, other: object) -> NoReturn:
        raise ValueError

    def __bool__(self) -> NoReturn:
        raise ValueError

    __hash__ = None  # type: ignore[assignment]


class Nameless(type):
    @property
    def __name__(cls) -> NoReturn:  # type: ignore[override]
        raise ValueError


class Anonymous(Exception, metaclass=Nameless):
    pass


class NotCopied(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__()

    def __reduce__(self) -> NoReturn:
        raise RuntimeError


def circle() -> BaseException:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    return first


def deep_group() -> BaseException:
    error: BaseException = ValueError()
    for _ in range(5_000):
        error = BaseExceptionGroup("x", [error])
    return error


def wide_group() -> BaseException:
    return BaseExceptionGroup("x" * MANY, [KeyboardInterrupt()] * MANY)


#: Each makes an exception; by the name of its class, or what is odd about it.
HOSTILE: Final[dict[str, Callable[[], BaseException]]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit("x" * MANY),
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "TimeIsUp": TimeIsUp,
    "Interrupt": Interrupt,
    "Shutdown": Shutdown,
    "TimeLimitExceeded": TimeLimitExceeded,
    "RateLimitExceeded": lambda: RateLimitExceeded("x"),
    "ExceptionGroup": lambda: ExceptionGroup("several", [ValueError(), KeyError()]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [KeyboardInterrupt()]),
    "a wide group": wide_group,
    "a deep group": deep_group,
    "causes in a circle": circle,
    "Mute": Mute,
    "Furious": Furious,
    "SaysNoText": SaysNoText,
    "Closed": Closed,
    "Exits": Exits,
    "Faceless": Faceless,
    "OwnErrors": OwnErrors,
    "HugeState": HugeState,
    "Unequal": Unequal,
    "Anonymous": Anonymous,
    "NotCopied": lambda: NotCopied(1, 2),
    "a huge text": lambda: ValueError("x\n" * MANY * 10),
    "spaces": lambda: ValueError(" " * MANY * 10),
    "NUL and a surrogate": lambda: ValueError("\0\ud800\x1b[31m"),
    "a huge name": type("H" * MANY, (Exception,), {}),
    "a huge key": lambda: KeyError("k" * MANY),
    "a huge refusal": lambda: DomainError("x\0" * MANY),
    "a refusal of no text": lambda: DomainError(5),  # type: ignore[arg-type]
}
