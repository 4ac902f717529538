"""The sources of values: relay.toml and the environment, merged, with the origin of each value.

From weak to strong: default, ``DATABASE_URL`` and the prefixes of sr-message-contracts §8 (they name what has
no name), relay.toml, ``NATS_URL`` and the other variables without ``RELAY_``, ``RELAY_*``. An empty one counts
as not set. In a text of relay.toml ``${NAME:-default}`` stands for a variable. For a secret, ``<key>_file`` and
``<VARIABLE>_FILE`` name a file that holds it. They are as strong as the key or variable itself.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from relay.domain.errors import ConfigurationError
from relay.settings.credentials import HttpSettings
from relay.settings.lines import key_lines
from relay.settings.problems import KeyPath, SettingProblem
from relay.settings.secrets import SUFFIX, FromFile, secret_of
from relay.settings.section import Section

PREFIX: Final = "RELAY_"
CONFIG_VARIABLE: Final = "RELAY_CONFIG"
#: Set in a development fleet, which has its own servers: the access keys in relay.toml are for other servers.
OWN_SERVERS: Final = "RELAY_OWN_SERVERS"
DEFAULT_FILE: Final = Path("relay.toml")

#: The NATS variables are the ones that NATS's own command line tool reads.
_ALIASES: Final[dict[str, KeyPath]] = {
    "NATS_URL": ("nats_url",),
    "NATS_USER": ("nats", "user"),
    "NATS_PASSWORD": ("nats", "password"),
    "NATS_TOKEN": ("nats", "token"),
    "NATS_CREDS": ("nats", "credentials"),
    "NATS_NKEY": ("nats", "nkey"),
    "NATS_CA": ("nats", "ca"),
    "NATS_CERT": ("nats", "certificate"),
    "NATS_KEY": ("nats", "key"),
    "NATS_INBOX_PREFIX": ("nats", "inbox_prefix"),
    "REDIS_URL": ("redis_url",),
}
_SERVERS: Final = {*_ALIASES, "DATABASE_URL", "RELAY_NATS_URL", "RELAY_REDIS_URL"}
_STEERING: Final = {CONFIG_VARIABLE, OWN_SERVERS}
_FILE: Final = SUFFIX.upper()
#: Variable → (key of a stream, whether it also applies to the DLQ stream). Dead letters have their own retention.
_STREAM_DEFAULTS: Final = {
    "NATS_MESSAGE_TTL_SECS": ("max_age", False),
    "NATS_MAX_MSGS_PER_SUBJECT": ("max_msgs_per_subject", False),
    "NATS_DUPLICATE_WINDOW_SECS": ("duplicate_window", True),
}
# If a service is called relay, Kubernetes gives every pod RELAY_SERVICE_HOST, RELAY_PORT_4222_TCP and so on.
_NOT_OURS = re.compile(r"RELAY(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
#: A default is always given: without one, a password may hold the same characters.
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):-([^{}]*)\}")
_POSITION = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(slots=True)
class Layers:
    """The merged tables, the origin of each key, merge problems, and the secrets that could not be read."""

    root: type[Section]
    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[SettingProblem] = field(default_factory=list)
    unread: list[SettingProblem] = field(default_factory=list)

    def put(self, path: KeyPath, value: object, origin: str, *, weak: bool = False) -> None:
        """Set one key. A weak value does not replace another. A key that names a file sets the secret in it."""
        if isinstance(value, str) and (secret := secret_of(self.root, path)):
            path, value = (*path[:-1], secret), FromFile(value)
        table: Any = self.data
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                self.problems.append(SettingProblem(path, f"{part} is a value here and a table in {origin}"))
                return
        if weak and path[-1] in table:
            return
        table[path[-1]] = value
        self.origins[path] = origin

    def read_secrets(self, *path: str) -> None:
        """Replace the files that a table and the tables in it name by their content."""
        for key, value in self.table(*path).items():
            here = (*path, key)
            if isinstance(value, dict):
                self.read_secrets(*here)
            elif isinstance(value, FromFile):
                origin = self.origins[here]
                self.origins[here] = f"file {value.path} ({origin})"
                try:
                    self.table(*path)[key] = value.read()
                except ValueError as error:
                    self.origins[here] = origin
                    self.unread.append(SettingProblem(here, str(error)))

    def table(self, *path: str) -> dict[str, Any]:
        """Return the table at ``path``; an empty table if there is none."""
        found: Any = self.data
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def read_layers(root: type[Section], path: Path | None, environ: Mapping[str, str]) -> Layers:
    """Read the file (None: ``RELAY_CONFIG``, else relay.toml if it exists) and the environment, for ``root``.

    Raises ConfigurationError if the file is missing, unreadable or not TOML.
    """
    environ = {name: value for name, value in environ.items() if value}
    layers = Layers(root)
    if (file := find_file(path, environ)) is not None:
        _read_file(file, layers)
        layers.data = _filled((), layers.data, environ, layers)
        if OWN_SERVERS in environ:
            _forget_access(layers)
        _name_files(layers)
    _put_variables(environ, layers)
    for context, table in layers.table("contexts").items():
        if isinstance(table, dict):  # anything else is refused by validation
            _put_common_defaults(("contexts", context), environ, layers)
            _put_default_names(("contexts", context), environ, layers)
    layers.read_secrets()
    return layers


def names_server(variable: str) -> bool:
    """Whether a variable gives the address of a server or the access to it."""
    name = variable.removesuffix(_FILE)
    return name in _SERVERS or name.startswith(("RELAY_NATS__", "RELAY_REDIS__"))


def _forget_access(layers: Layers) -> None:
    """Remove the access keys of servers and handlers. The fleet that set the variable overrides the addresses."""
    for name in ("nats", "redis"):
        layers.data.pop(name, None)
    for context in layers.table("contexts"):
        for subscription in layers.table("contexts", context, "subscriptions"):
            table = layers.table("contexts", context, "subscriptions", subscription)
            for key in HttpSettings.model_fields:
                table.pop(key, None)
                table.pop(f"{key}{SUFFIX}", None)


def _name_files(layers: Layers, *path: str) -> None:
    """Replace each key that names a secret's file by the key of that secret."""
    for key, value in [*layers.table(*path).items()]:
        here = (*path, key)
        if isinstance(value, dict):
            _name_files(layers, *here)
        elif isinstance(value, str) and (secret := secret_of(layers.root, here)):
            if secret in layers.table(*path):
                layers.problems.append(SettingProblem(here, f"is set together with {secret}", "give one of them"))
            layers.put(here, layers.table(*path).pop(key), layers.origins.pop(here))


def _put_variables(environ: Mapping[str, str], layers: Layers) -> None:
    declared = frozenset(layers.table("contexts"))
    for alias, key in _ALIASES.items():
        for variable, path in ((alias, key), (f"{alias}{_FILE}", (*key[:-1], f"{key[-1]}{SUFFIX}"))):
            if variable in environ:
                layers.put(path, environ[variable], f"env {variable}")
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in _STEERING and not _NOT_OURS.fullmatch(variable):
            _put_variable(variable, environ[variable], layers, declared)
        if variable.startswith(PREFIX) or names_server(variable):
            plain = variable.removesuffix(_FILE)
            if plain != variable and plain in environ:
                layers.problems.append(SettingProblem((variable,), f"is set beside {plain}", "give one of them"))


def find_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: ``path``, else that of ``RELAY_CONFIG``, else relay.toml if there is one."""
    if path is None and CONFIG_VARIABLE in environ:
        path = Path(environ[CONFIG_VARIABLE])
    if path is None:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    return path


def _read_file(file: Path, layers: Layers) -> None:
    shown = _shown(file)
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigurationError(
            f"cannot read {shown}: {reason}", hint=f"{CONFIG_VARIABLE} names another file"
        ) from error
    try:
        layers.data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = _POSITION.search(str(error))
        where = f"{shown}:{line[1]}" if line else shown
        raise ConfigurationError(f"{where}: not valid TOML: {error}") from error
    layers.origins = {path: f"{shown}:{line}" for path, line in key_lines(text).items()}


def _filled(path: KeyPath, value: Any, environ: Mapping[str, str], layers: Layers) -> Any:
    """Put the values of variables where texts of the file name them."""
    match value:
        case dict():
            return {key: _filled((*path, key), inner, environ, layers) for key, inner in value.items()}
        case list():
            return [_filled((*path, str(place)), inner, environ, layers) for place, inner in enumerate(value)]
        case str() if set_there := [name for name, _ in _REFERENCE.findall(value) if name in environ]:
            layers.origins[path] = f"{layers.origins.get(path, '')} (env {', '.join(set_there)})".lstrip()
    if not isinstance(value, str):
        return value
    return _REFERENCE.sub(lambda found: environ.get(found[1]) or found[2], value)


def _shown(file: Path) -> str:
    try:
        return str(file.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def _put_variable(variable: str, value: str, layers: Layers, declared: frozenset[str]) -> None:
    path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
    if path[0] == "contexts" and len(path) > 2:
        context = _known_name(path[1], layers.table("contexts"))
        path = ("contexts", context, *path[2:])
        if declared and context not in declared:
            known = ", ".join(sorted(declared))
            layers.origins[path] = f"env {variable}"
            layers.problems.append(
                SettingProblem(
                    path,
                    f"no context is called {context}",
                    f"add [contexts.{context}] to the file; it has {known}",
                )
            )
            return
        if path[2] in ("subscriptions", "streams") and len(path) > 4:
            name = _known_name(path[3], layers.table(*path[:3]))
            path = (*path[:3], name, *path[4:])
    layers.put(path, value, f"env {variable}")


def _known_name(written: str, known: Mapping[str, object]) -> str:
    """Find the name that a variable means. Variables have one case and no hyphen: an underscore stands for it."""
    if written in known:
        return written
    return next((name for name in known if name.replace("-", "_").lower() == written), written)


def _put_common_defaults(here: KeyPath, environ: Mapping[str, str], layers: Layers) -> None:
    if url := environ.get("DATABASE_URL"):
        layers.put((*here, "database_url"), url.replace("{context}", here[1]), "env DATABASE_URL", weak=True)
    if file := environ.get("DATABASE_URL_FILE"):
        layers.put((*here, "database_url"), FromFile(file, here[1]), "env DATABASE_URL_FILE", weak=True)
    for variable, (key, dead_letters_too) in _STREAM_DEFAULTS.items():
        for stream in (*_event_streams(here, layers), *([("dlq",)] if dead_letters_too else [])):
            path = (*here, *stream, key)
            # A variable that names the context is stronger.
            if variable in environ and not layers.origins.get(path, "").startswith("env "):
                layers.put(path, environ[variable], f"env {variable}")


def _event_streams(here: KeyPath, layers: Layers) -> list[KeyPath]:
    """The tables of a context's event streams. The single one is there unless others are declared instead."""
    declared = layers.table(*here, "streams")
    several: list[KeyPath] = [("streams", name) for name, it in declared.items() if isinstance(it, dict)]
    return several if several and "stream" not in layers.table(*here) else [("stream",), *several]


def _put_default_names(here: KeyPath, environ: Mapping[str, str], layers: Layers) -> None:
    """Name streams ``sr-events`` (context ``sr``) or ``sr-<context>-events``; durables begin with their prefix.

    Where a table has several streams, its keys are their names.
    """
    context = here[1]
    if prefix := environ.get("NATS_STREAM_PREFIX"):
        base = prefix if prefix == context else f"{prefix}-{context}"
        if ("stream",) in _event_streams(here, layers):
            layers.put((*here, "stream", "name"), f"{base}-events", "env NATS_STREAM_PREFIX", weak=True)
        layers.put((*here, "dlq", "name"), f"{base}-dlq", "env NATS_STREAM_PREFIX", weak=True)
    if prefix := environ.get("NATS_CONSUMER_PREFIX"):
        for name, subscription in layers.table(*here, "subscriptions").items():
            if isinstance(subscription, dict):
                path = (*here, "subscriptions", name, "durable")
                layers.put(path, f"{prefix}-{context}__{name}", "env NATS_CONSUMER_PREFIX", weak=True)
