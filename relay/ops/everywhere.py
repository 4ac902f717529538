"""Asks all contexts at once: a few at a time, each for a limited time. One that does not answer is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from relay.domain.errors import InvalidKey, InvalidRequest, RelayError

#: How long a context may take, in seconds, and how many are asked at once.
PATIENCE_S: Final = 5.0
_AT_ONCE: Final = 8
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Everywhere(Generic[Answer]):
    """The answers by context, in the order in which they were asked, and why the others did not answer."""

    answers: Mapping[str, Answer]
    unread: Mapping[str, str]


async def everywhere(
    contexts: Iterable[str], ask: Callable[[str], Awaitable[Answer]], patience_s: float = PATIENCE_S
) -> Everywhere[Answer]:
    """Ask each context. Raises InvalidRequest and InvalidKey: what is asked is wrong everywhere."""
    names, turns = list(contexts), asyncio.Semaphore(_AT_ONCE)
    answers, unread = dict[str, Answer](), dict[str, str]()

    async def one(name: str) -> None:
        try:
            async with turns, asyncio.timeout(patience_s):
                answers[name] = await ask(name)
        except TimeoutError:
            unread[name] = f"no answer within {patience_s:g} s"
        except (InvalidRequest, InvalidKey):
            raise
        except RelayError as error:
            unread[name] = error.message

    await asyncio.gather(*map(one, names))
    return Everywhere({it: answers[it] for it in names if it in answers}, unread)
