"""The line of each key in relay.toml, so that a refusal can name the line to mend."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator

from relay.settings.problems import KeyPath


def key_lines(text: str) -> dict[KeyPath, int]:
    """Map each key path of a valid TOML text to the line, from 1, where the key is set or its table begins.

    Each ``[[table]]`` of a list has its number, from 0, in the path.
    """
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    lists: Counter[KeyPath] = Counter()
    for number, statement in _statements(text):
        parsed = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = max(_paths(parsed), key=len)
            if statement.lstrip().startswith("[["):
                found.setdefault(table[:-1], number)
                table = (*table[:-1], str(lists[table]))
                lists[(*table[:-1], "0")] += 1
            found.setdefault(table, number)
        else:
            for path in _paths(parsed):
                found.setdefault(table + path, number)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Split TOML into its statements: one line, or more until the parser accepts them."""
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        first = first if pending else number
        pending += line
        try:
            tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        yield first, pending
        pending = ""


def _paths(data: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    if path:
        yield path
    if isinstance(data, list):
        for place, item in enumerate(data):
            if isinstance(item, dict):
                yield from _paths(item, (*path, str(place)))
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _paths(value, (*path, key))
