"""Single values of the configuration in sight, without the rest of it: for an `Outbox`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from relay.domain.errors import ConfigurationError

#: What decides: the file, when it was changed, and variables.
Sight: TypeAlias = tuple[Path | None, int, frozenset[tuple[str, str]]]


def in_sight(start: str, environ: Mapping[str, str] | None) -> Sight | None:
    """What decides, of the variables those that begin so. None if there is nothing."""
    from relay.settings.sources import find_file  # noqa: PLC0415 - it knows all sections

    environ = os.environ if environ is None else environ
    path = find_file(None, {name: value for name, value in environ.items() if value})
    variables = frozenset((name, value) for name, value in environ.items() if name.upper().startswith(start))
    with suppress(OSError):
        if path is not None:
            return path.resolve(), path.stat().st_mtime_ns, variables
    return (None, 0, variables) if variables else None


def read_declared(path: Path | None, variables: frozenset[tuple[str, str]]) -> dict[str, Any]:
    """The merged tables; none if they cannot be read."""
    from relay.settings.model import Settings  # noqa: PLC0415 - it has these sections
    from relay.settings.sources import read_sources  # noqa: PLC0415

    with suppress(ConfigurationError):
        return read_sources(Settings, path, dict(variables)).data
    return {}


def context_value(context: str, key: str, environ: Mapping[str, str] | None) -> Any:
    """What a key of a context says; None if nothing does."""
    declared = in_sight(f"RELAY_CONTEXTS__{context.upper()}__{key.upper()}", environ)
    return None if declared is None else _value(*declared, context, key)


@lru_cache(maxsize=64)
def _value(path: Path | None, _changed: int, variables: frozenset[tuple[str, str]], context: str, key: str) -> Any:
    contexts = read_declared(path, variables).get("contexts", {})
    found = contexts.get(context) if isinstance(contexts, dict) else None
    return found.get(key) if isinstance(found, dict) else None
