"""The contexts that are declared where a process runs, without a check of the rest of the configuration."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from relay.settings.sources import PREFIX, find_file

_CONTEXTS = f"{PREFIX}CONTEXTS__"


def declared_contexts(environ: Mapping[str, str] | None = None) -> tuple[Path, frozenset[str]] | None:
    """Return the configuration file in sight and the names of its contexts.

    That is the file of ``RELAY_CONFIG``, else relay.toml in the working directory. If it declares no context,
    variables may. None without a file, or if it declares none or cannot be read: then nothing is known.
    """
    environ = os.environ if environ is None else environ
    path = find_file(None, {name: value for name, value in environ.items() if value})
    if path is None:
        return None
    found = frozenset[str]()
    with suppress(OSError, ValueError):
        found = _of_file(path.resolve(), path.stat().st_mtime_ns)
    found = found or frozenset(
        name.removeprefix(_CONTEXTS).partition("__")[0].lower() for name in environ if name.startswith(_CONTEXTS)
    )
    return (path, found) if found else None


@lru_cache(maxsize=8)
def _of_file(path: Path, _changed: int) -> frozenset[str]:
    contexts = tomllib.loads(path.read_text("utf-8")).get("contexts")
    return frozenset(contexts) if isinstance(contexts, dict) else frozenset()
