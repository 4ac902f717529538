"""The JSON Schemas (draft 2020-12) of jetrelay's envelopes, each in a file ``<name>.<version>.json``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from relay.domain.errors import InvalidRequest


def versions(name: str) -> Mapping[str, str]:
    """The schemas of a name by their versions, the oldest first."""
    return {version: text for (named, version), text in _all().items() if named == name}


def names() -> Mapping[str, list[str]]:
    """The names, with the versions of each."""
    return {name: list(versions(name)) for name, _ in _all()}


def schema(name: str, version: str | None = None) -> str:
    """The text of a schema, of the newest version if none is given. Raises InvalidRequest."""
    known = versions(name)
    if not known or (version is not None and version not in known):
        shown = name if version is None else f"{name}.{version}"
        listed = ", ".join(f"{it}.{number}" for it, numbers in names().items() for number in numbers)
        raise InvalidRequest(f"there is no schema {shown[:80]!r}", hint=f"there are: {listed}")
    return known[version or list(known)[-1]]


def _all() -> Mapping[tuple[str, str], str]:
    found = {}
    for file in files(__name__).iterdir():
        name, _, version = file.name.removesuffix(".json").partition(".")
        if file.name.endswith(".json"):
            found[name, version] = file.read_text("utf-8")
    return dict(sorted(found.items(), key=lambda item: (item[0][0], [*map(int, item[0][1].split("."))])))
