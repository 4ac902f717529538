"""What operators search for, as one line that means the same in the console, over HTTP and at the command line.

    customer:47 reason:timeout since:6h type:order_*

A term is ``name:value``, or a word alone: an id, the beginning of one, or a key. Quotes hold a value with spaces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from relay.domain.errors import InvalidRequest

_LONGEST: Final = 300
_MOST: Final = 10
_NAME: Final = r"[a-z][a-z0-9_.]{0,63}"
_TERM: Final = re.compile(rf'(?:({_NAME}):)?(?:"((?:[^"\\]|\\.)*)"|([^\s"]+))(?=\s|$)')
_PLAIN: Final = re.compile(r'[^\s"\\]+')
_HINT: Final = "such as: customer:47 reason:timeout since:6h type:order_*"
#: The beginning of a UUID.
_BEGINNING: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{0,4}){0,3}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{0,12}")


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that is asked for. ``name`` is empty for a word alone."""

    name: str
    value: str

    def __str__(self) -> str:
        """The term as `parse` reads it."""
        plain = _PLAIN.fullmatch(self.value) and (self.name or not _TERM_NAME.match(self.value))
        escaped = self.value.replace("\\", "\\\\").replace('"', '\\"')
        value = self.value if plain else f'"{escaped}"'
        return f"{self.name}:{value}" if self.name else value

    @property
    def word(self) -> str:
        """The term as a key would be written: ``order:47``."""
        return f"{self.name}:{self.value}" if self.name else self.value


_TERM_NAME: Final = re.compile(rf"{_NAME}:")


def parse(text: str) -> tuple[Term, ...]:
    """Read a line. Raises InvalidRequest."""
    if len(text) > _LONGEST or "\x00" in text:
        raise InvalidRequest(f"is longer than {_LONGEST} characters, or has a NUL", field="q", hint=_HINT)
    found, at = list[Term](), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        term = _TERM.match(text, at)
        value = term and (re.sub(r"\\(.)", r"\1", term[2], flags=re.DOTALL) if term[2] is not None else term[3])
        if not term or not value:
            raise InvalidRequest(f"cannot be read from {text[at : at + 20]!r} on", field="q", hint=_HINT)
        found.append(Term(term[1] or "", value))
        at = term.end()
    if not 0 < len(found) <= _MOST:
        raise InvalidRequest(f"needs 1 to {_MOST} terms", field="q", hint=_HINT)
    return tuple(found)


def written(terms: tuple[Term, ...]) -> str:
    """The line that `parse` reads as these terms."""
    return " ".join(map(str, terms))


def like(pattern: str | None) -> str | None:
    """A pattern with ``*`` at its end, or a whole text, as LIKE of SQL has it."""
    if pattern is None:
        return None
    text, star = (pattern[:-1], "%") if pattern.endswith("*") else (pattern, "")
    return re.sub(r"([\\%_])", r"\\\1", text) + star


def fits(pattern: str, text: str | None) -> bool:
    """Whether a text is what `like` finds for a pattern."""
    return text is not None and (text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern)


def ids_from(word: str) -> tuple[str, str] | None:
    """The lowest and the highest UUID that begin with a word; None if none does, or it is too short."""
    if not _BEGINNING.fullmatch(word):
        return None
    digits = word.replace("-", "")
    return digits.ljust(32, "0"), digits.ljust(32, "f")


def names_of(path: str) -> set[str]:
    """The names by which a field is searched: ``customer_id`` also as ``customer``, ``order.id`` as ``order``."""
    return {path, path.removesuffix("_id"), path.removesuffix(".id")}
