"""Configuration: relay.toml and the environment, checked as a whole before anything starts.

`load_settings` reads it. `effective` shows each value and its source. Keys and defaults: `relay.settings.model`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from relay.domain.errors import ConfigurationError
from relay.settings.archive import ArchiveSettings
from relay.settings.credentials import HttpSettings, TlsSettings
from relay.settings.model import ContextSettings, Settings, SubscriptionSettings, tables
from relay.settings.ops import OpsSettings
from relay.settings.payloads import declared_payload_limit
from relay.settings.personal import declared_masters, declared_personal, needed_masters
from relay.settings.problems import KeyPath, SettingProblem, from_pydantic, refuse
from relay.settings.rules import check
from relay.settings.section import Section
from relay.settings.sources import (
    CONFIG_VARIABLE,
    OWN_SERVERS,
    declared_contexts,
    declared_topics,
    find_file,
    names_server,
    read_sources,
)
from relay.settings.telemetry import MetricsSettings, TracingSettings
from relay.settings.urls import hide_url
from relay.settings.values import CONTEXT_NAME, format_duration, format_size

__all__ = [
    "CONFIG_VARIABLE",
    "OWN_SERVERS",
    "ArchiveSettings",
    "ContextSettings",
    "HttpSettings",
    "KeyPath",
    "MetricsSettings",
    "OpsSettings",
    "SettingProblem",
    "Settings",
    "SubscriptionSettings",
    "TlsSettings",
    "TracingSettings",
    "count_in_files",
    "declared_contexts",
    "declared_masters",
    "declared_payload_limit",
    "declared_personal",
    "declared_topics",
    "effective",
    "environment_for_child",
    "find_file",
    "load_settings",
    "names_server",
    "needed_masters",
    "unusable",
    "without_handler",
]

_HINT = "declare [contexts.<name>] in relay.toml in the working directory, or name the file in RELAY_CONFIG"


def load_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read, merge and check the configuration.

    ``path`` defaults to ``RELAY_CONFIG``, else to ``relay.toml`` in the working directory if it exists.
    ``environ`` defaults to the environment of the process. Raises ConfigurationError, which names every problem
    with its key and the line or variable to correct.
    """
    read = read_sources(Settings, path, os.environ if environ is None else environ)
    if first := [*read.unread, *_bad_names(read.data)]:
        raise refuse([*read.problems, *first], read.origins)  # further problems would only follow from these
    settings, problems = _build(read.data)
    problems = [*read.problems, *problems, *_written_names(read.data)]
    if settings is not None:
        settings._origins.update(read.origins)  # noqa: SLF001 - ours: pydantic has no other place for it
        problems += check(settings)
        if not settings.contexts and not problems:
            problems.append(SettingProblem(("contexts",), "no context is declared", _HINT))
    if problems or settings is None:
        raise refuse(problems, read.origins)
    return settings


def without_handler(path: Path | None, environ: Mapping[str, str]) -> dict[str, list[str]]:
    """List the subscriptions that name no handler, by context. Raises ConfigurationError."""
    contexts = tables(read_sources(Settings, path, environ).data.get("contexts"))
    found = {
        name: [sub for sub, it in tables(table.get("subscriptions")) if not it.get("handler")]
        for name, table in contexts
    }
    return {name: subscriptions for name, subscriptions in found.items() if subscriptions}


def unusable(settings: Settings, problem: SettingProblem) -> ConfigurationError:
    """The error for a value that proves unusable only when it is used, with the line or variable to correct."""
    return refuse([problem], settings._origins)  # noqa: SLF001


def count_in_files(directory: Path) -> None:
    """Make prometheus-client count in files below ``directory``. It reads this only from the environment."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)


def environment_for_child(**more: str) -> dict[str, str]:
    """The environment of this process, with more variables, for a process of ours that it starts."""
    return {**os.environ, **more}


def _build(data: dict[str, Any]) -> tuple[Settings | None, list[SettingProblem]]:
    """Validate. Unknown keys are reported and ignored, so that one run finds the other problems too."""
    try:
        return Settings.model_validate(data), []
    except ValidationError as error:
        problems = list(from_pydantic(error, Settings))
    with suppress(ValidationError):
        return Settings.model_validate(data, extra="ignore"), problems
    return None, problems


def _bad_names(data: dict[str, Any]) -> Iterator[SettingProblem]:
    hint = "a-z first, then a-z, 0-9, _ and -, at most 64 characters"
    for name, context in tables(data.get("contexts")):
        if not CONTEXT_NAME.fullmatch(name):
            yield SettingProblem(("contexts", name), "is not a name for a context", hint)
        for sub, _ in tables(context.get("subscriptions")):
            if not CONTEXT_NAME.fullmatch(sub):
                yield SettingProblem(
                    ("contexts", name, "subscriptions", sub), "is not a name for a subscription", hint
                )


def _written_names(data: dict[str, Any]) -> Iterator[SettingProblem]:
    """Refuse ``name`` and ``context`` where the table's name already sets them."""
    for name, context in tables(data.get("contexts")):
        here = ("contexts", name)
        written: list[KeyPath] = [(*here, key) for key in ContextSettings.filled if key in context]
        for sub, table in tables(context.get("subscriptions")):
            written += [(*here, "subscriptions", sub, key) for key in SubscriptionSettings.filled if key in table]
        for path in written:
            yield SettingProblem(path, "unknown key", f"the table's name, {path[-2]}, gives it")


def effective(settings: Settings) -> list[tuple[str, str, str]]:
    """List every effective value: key path, value as text, source.

    The source is ``default``, ``relay.toml:LINE`` or ``env NAME``. For a secret from a file it is ``file PATH``
    and the source that named the file. Passwords, tokens and signing secrets are hidden.
    """
    origins = settings._origins  # noqa: SLF001
    return [
        (".".join(path), _as_text(path[-1], value), origins.get(path, "default"))
        for path, value in _values((), settings)
    ]


def _values(path: KeyPath, section: Section) -> Iterator[tuple[KeyPath, object]]:
    for key, name in section.writable().items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _values((*path, key), value)
        elif isinstance(value, dict):
            for inner, it in value.items():
                here = (*path, key, inner)
                yield from _values(here, it) if isinstance(it, Section) else [(here, it)]
        elif isinstance(value, tuple) and any(isinstance(row, Section) for row in value):
            for place, row in enumerate(value):
                yield from _values((*path, key, str(place)), row)
        else:
            yield (*path, key), value


def _as_text(key: str, value: object) -> str:
    match value:
        case SecretStr():
            text = hide_url(value.get_secret_value()) if key.endswith("_url") else "***"
        case datetime():
            text = value.isoformat()
        case timedelta():
            text = format_duration(value)
        case tuple():
            text = ", ".join(value)
        case bool():
            text = str(value).lower()
        case int() if key.endswith("_bytes"):
            text = format_size(value)
        case str() if key == "handler" and "://" in value:
            text = hide_url(value)
        case None:
            text = "unlimited" if key == "max_age" else "none"
        case _:
            text = str(value)
    return text
