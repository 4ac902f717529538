"""The sources of values: relay.toml and the environment, merged, with the origin of each value.

Every source becomes entries, which have the path of a key, a value and an origin. `_layers` lists the sources from
weak to strong. An empty variable counts as not set. In a text of relay.toml ``${NAME:-default}`` stands for a
variable. For a secret, ``<key>_file`` and ``<VARIABLE>_FILE`` name a file that holds it. They are as strong as the
key or variable itself. Such files are read last, so one that a stronger source overrides need not exist.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from pydantic import SecretStr

from relay.domain.errors import ConfigurationError
from relay.domain.routing import event_subjects
from relay.settings.credentials import HttpSettings
from relay.settings.problems import KeyPath, SettingProblem
from relay.settings.section import Section, section_at
from relay.settings.values import parse_list

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
#: Passwords that the servers are set up with, by deploy/. They may be in the environment of `relay`, too.
_FOR_SERVERS: Final = {
    f"RELAY_{name}PASSWORD{end}"
    for name in ("", "OWNER_", "NATS_", "NATS_ADMIN_", "REDIS_")
    for end in ("", "_FILE")
}
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
#: The longest secret, in bytes. A longer file is not a secret.
_MAX_SECRET_BYTES: Final = 65_536


class _Entry(NamedTuple):
    """A value and where it is written. ``context`` stands for ``{context}`` in a secret that a file holds."""

    value: object
    origin: str
    context: str | None = None


_Entries = dict[KeyPath, _Entry]


@dataclass(slots=True)
class Sources:
    """The merged tables, the origin of each key, merge problems, and the secrets that could not be read."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[SettingProblem] = field(default_factory=list)
    unread: list[SettingProblem] = field(default_factory=list)

    def put(self, path: KeyPath, value: object, origin: str) -> None:
        """Set one key. An empty table replaces nothing."""
        table: Any = self.data
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                self.problems.append(SettingProblem(path, f"{part} is a value here and a table in {origin}"))
                return
        if value == {}:
            table.setdefault(path[-1], {})
        else:
            table[path[-1]] = value
        self.origins[path] = origin


def read_sources(root: type[Section], path: Path | None, environ: Mapping[str, str]) -> Sources:
    """Read the file (None: ``RELAY_CONFIG``, else relay.toml if it exists) and the environment, for ``root``.

    Raises ConfigurationError if the file is missing, unreadable or not TOML.
    """
    environ = {name: value for name, value in environ.items() if value}
    read, merged = Sources(), _Entries()
    for layer in _layers(find_file(path, environ), environ, read):
        for key, entry in layer.items():
            secret = secret_of(root, key)
            if secret is not None and secret in layer:
                read.origins[key] = entry.origin
                read.problems.append(SettingProblem(key, f"is set together with {secret[-1]}", "give one of them"))
            # A plain value and a file with it are the same key, so the stronger one replaces the other.
            merged[secret or key] = entry._replace(value=_SecretFile(str(entry.value))) if secret else entry
    for key, (value, origin, context) in merged.items():
        if not isinstance(value, _SecretFile):
            read.put(key, value, origin)
            continue
        try:
            read.put(key, value.content(context), f"file {value} ({origin})")
        except ValueError as error:
            read.origins[key] = origin
            read.unread.append(SettingProblem(key, str(error)))
    return read


def _layers(file: Path | None, environ: Mapping[str, str], read: Sources) -> Iterator[_Entries]:
    """The sources, the weakest first: names for what has none, relay.toml, other variables, ``RELAY_…``."""
    written = _Entries() if file is None else _of_file(file, environ, read)
    variables = _of_variables(environ, written, read)
    both = {**written, **variables}
    yield _default_names(both, environ)
    yield written
    yield _stream_values(both, environ)
    yield {
        (*key[:-1], f"{key[-1]}{end.lower()}"): _Entry(environ[f"{alias}{end}"], f"env {alias}{end}")
        for alias, key in _ALIASES.items()
        for end in ("", "_FILE")
        if f"{alias}{end}" in environ
    }
    yield variables


def find_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: ``path``, else that of ``RELAY_CONFIG``, else relay.toml if there is one."""
    if path is None and CONFIG_VARIABLE in environ:
        path = Path(environ[CONFIG_VARIABLE])
    if path is None:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    return path


def names_server(variable: str) -> bool:
    """Whether a variable gives the address of a server or the access to it."""
    name = variable.removesuffix("_FILE")
    return name in _SERVERS or name.startswith(("RELAY_NATS__", "RELAY_REDIS__"))


def _tables(entries: _Entries, *path: str) -> list[str]:
    """The names of the tables in the table at ``path``."""
    place = len(path)
    return list(
        dict.fromkeys(
            key[place]
            for key, entry in entries.items()
            if key[:place] == path and (len(key) > place + 1 or (len(key) > place and entry.value == {}))
        )
    )


# --- relay.toml ---


def _of_file(file: Path, environ: Mapping[str, str], read: Sources) -> _Entries:
    try:
        shown = str(file.resolve().relative_to(Path.cwd()))
    except ValueError:
        shown = str(file)
    try:
        text = file.read_text("utf-8")
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = _POSITION.search(str(error))
        where = f"{shown}:{line[1]}" if line else shown
        raise ConfigurationError(f"{where}: not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigurationError(
            f"cannot read {shown}: {reason}", hint=f"{CONFIG_VARIABLE} names another file"
        ) from error
    read.origins |= {path: f"{shown}:{line}" for path, line in key_lines(text).items()}
    written = {
        key: _Entry(value, read.origins.get(key, shown))
        for key, value in _flat(_filled((), data, environ, read.origins))
    }
    if OWN_SERVERS not in environ:
        return written
    return {key: entry for key, entry in written.items() if not _gives_access(key)}


def _flat(table: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), value


def _filled(path: KeyPath, value: Any, environ: Mapping[str, str], origins: dict[KeyPath, str]) -> Any:
    """Put the values of variables where texts of the file name them."""
    match value:
        case dict():
            return {key: _filled((*path, key), inner, environ, origins) for key, inner in value.items()}
        case list():
            return [_filled((*path, str(place)), inner, environ, origins) for place, inner in enumerate(value)]
        case str() if names := [name for name, _ in _REFERENCE.findall(value) if name in environ]:
            origins[path] = f"{origins.get(path, '')} (env {', '.join(names)})".lstrip()
    if not isinstance(value, str):
        return value
    return _REFERENCE.sub(lambda found: environ.get(found[1]) or found[2], value)


def _gives_access(path: KeyPath) -> bool:
    """Whether a key of relay.toml is for the access to servers or handlers, which a development fleet replaces."""
    if path[0] in ("nats", "redis"):
        return True
    key = path[4] if path[2:3] == ("subscriptions",) and len(path) > 4 else ""
    return key.removesuffix("_file") in HttpSettings.model_fields


def key_lines(text: str) -> dict[KeyPath, int]:
    """Map each key path of a valid TOML text to the line, from 1, where the key is set or its table begins.

    Each ``[[table]]`` of a list has its number, from 0, in the path.
    """
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    lists: Counter[KeyPath] = Counter()
    statement, begin = "", 1
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        statement += line
        try:
            paths = list(_paths(tomllib.loads(statement)))
        except tomllib.TOMLDecodeError:
            continue  # the statement goes on in the next line
        if not statement.lstrip().startswith("["):
            paths = [table + path for path in paths]
        else:
            table = max(paths, key=len)
            paths = [table]
            if statement.lstrip().startswith("[["):
                whole = table[:-1]
                table = (*whole, str(lists[whole]))
                lists[whole] += 1
                paths = [whole, table]
        for path in paths:
            found.setdefault(path, begin)
        statement, begin = "", number + 1
    return found


def _paths(data: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    if path:
        yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _paths(value, (*path, key))
    elif isinstance(data, list):
        for place, item in enumerate(data):
            if isinstance(item, dict):
                yield from _paths(item, (*path, str(place)))


# --- the environment ---


def _of_variables(environ: Mapping[str, str], written: _Entries, read: Sources) -> _Entries:
    """The keys that ``RELAY_…`` variables set. A context that relay.toml does not declare is a problem."""
    found = _Entries()
    declared = _tables(written, "contexts")
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in _STEERING | _FOR_SERVERS:
            continue
        if _NOT_OURS.fullmatch(variable):
            continue
        path, origin = _path_of(variable, written), f"env {variable}"
        if declared and path[0] == "contexts" and len(path) > 2 and path[1] not in declared:
            read.origins[path] = origin
            message = f"no context is called {path[1]}"
            hint = f"add [contexts.{path[1]}] to the file; it has {', '.join(sorted(declared))}"
            read.problems.append(SettingProblem(path, message, hint))
        else:
            found[path] = _Entry(environ[variable], origin)
    return found


def _path_of(variable: str, written: _Entries) -> KeyPath:
    """The key of a variable, which has one case and no hyphen. So a name is the one in the file that fits."""
    path = variable.removeprefix(PREFIX).lower().split("__")
    for place in range(1, len(path) - 1):
        known = _tables(written, *path[:place])
        if path[place] not in known:
            fitting = (name for name in known if name.replace("-", "_").lower() == path[place])
            path[place] = next(fitting, path[place])
    return tuple(path)


def _stream_values(entries: _Entries, environ: Mapping[str, str]) -> _Entries:
    """The variables that hold for the streams of all contexts."""
    return {
        ("contexts", context, *stream, key): _Entry(environ[variable], f"env {variable}")
        for context in _tables(entries, "contexts")
        for variable, (key, dead_letters_too) in _STREAM_DEFAULTS.items()
        if variable in environ
        for stream in [*_event_streams(entries, context), *([("dlq",)] if dead_letters_too else [])]
    }


def _event_streams(entries: _Entries, context: str) -> list[KeyPath]:
    """The tables of a context's event streams. The single one is there unless others are declared instead."""
    several: list[KeyPath] = [("streams", name) for name in _tables(entries, "contexts", context, "streams")]
    return (
        several if several and "stream" not in _tables(entries, "contexts", context) else [("stream",), *several]
    )


def _default_names(entries: _Entries, environ: Mapping[str, str]) -> _Entries:
    """What the variables of sr-message-contracts §8 name: databases, streams and durables that have no name.

    Streams are ``sr-events`` (context ``sr``) or ``sr-<context>-events``; durables begin with their prefix. Where
    a table has several streams, its keys are their names.
    """
    found = _Entries()
    for context in _tables(entries, "contexts"):
        here = ("contexts", context)
        if url := environ.get("DATABASE_URL"):
            found[*here, "database_url"] = _Entry(url.replace("{context}", context), "env DATABASE_URL")
        if file := environ.get("DATABASE_URL_FILE"):
            found[*here, "database_url_file"] = _Entry(file, "env DATABASE_URL_FILE", context)
        if prefix := environ.get("NATS_STREAM_PREFIX"):
            base = prefix if prefix == context else f"{prefix}-{context}"
            if ("stream",) in _event_streams(entries, context):
                found[*here, "stream", "name"] = _Entry(f"{base}-events", "env NATS_STREAM_PREFIX")
            found[*here, "dlq", "name"] = _Entry(f"{base}-dlq", "env NATS_STREAM_PREFIX")
        if prefix := environ.get("NATS_CONSUMER_PREFIX"):
            for name in _tables(entries, *here, "subscriptions"):
                durable = f"{prefix}-{context}__{name}"
                found[*here, "subscriptions", name, "durable"] = _Entry(durable, "env NATS_CONSUMER_PREFIX")
    return found


# --- secrets in files ---


class _SecretFile(str):
    """The path of a file with a secret."""

    __slots__ = ()

    def content(self, context: str | None) -> str:
        """Read the secret, without line breaks at its end. Raises ValueError, which never shows the content."""
        path = Path(self)
        if not path.is_absolute():
            raise ValueError("must begin with /: every process starts in a folder of its own")
        try:
            if path.exists() and not path.is_file():
                raise ValueError(f"cannot read {path}: not a file")
            with path.open("rb") as file:
                data = file.read(_MAX_SECRET_BYTES + 1)
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from None
        if len(data) > _MAX_SECRET_BYTES:
            raise ValueError(f"{path} is longer than {_MAX_SECRET_BYTES} bytes, so it is not a secret")
        try:
            text = data.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text") from None
        if not text:
            raise ValueError(f"{path} is empty")
        return text if context is None else text.replace("{context}", context)


def secret_of(root: type[Section], path: KeyPath) -> KeyPath | None:
    """The key of the secret, if the key at ``path`` names its file; else None."""
    fields = section_at(root, path[:-1]).model_fields
    name = path[-1].removesuffix("_file")
    if path[-1] in fields or name == path[-1] or name not in fields:
        return None
    return (*path[:-1], name) if _holds_secret(fields[name].annotation) else None


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_holds_secret, get_args(annotation)))


# --- the names of contexts alone ---


def declared_contexts(environ: Mapping[str, str] | None = None) -> tuple[Path, frozenset[str]] | None:
    """Return the configuration file in sight and the names of its contexts, without a check of the rest.

    That is the file of ``RELAY_CONFIG``, else relay.toml in the working directory. If it declares no context,
    variables may. None without a file, or if it declares none or cannot be read: then nothing is known.
    """
    environ = os.environ if environ is None else environ
    path = find_file(None, {name: value for name, value in environ.items() if value})
    if path is None:
        return None
    found = frozenset[str]()
    with suppress(OSError, ValueError):
        found = _contexts_of_file(path.resolve(), path.stat().st_mtime_ns)
    start = f"{PREFIX}CONTEXTS__"
    found = found or frozenset(
        name.removeprefix(start).partition("__")[0].lower() for name in environ if name.startswith(start)
    )
    return (path, found) if found else None


def declared_topics(context: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """Return the patterns of the topics that the file in sight gives a context: of its streams and of its routes.

    None if nothing is known: see `declared_contexts`, and variables may say something else.
    """
    environ = os.environ if environ is None else environ
    path = find_file(None, {name: value for name, value in environ.items() if value})
    start = f"{PREFIX}CONTEXTS__{context.upper()}__"
    if path is None or any(name.upper().startswith((f"{start}STREAM", f"{start}ROUTES")) for name in environ):
        return None
    with suppress(OSError, ValueError, AttributeError, TypeError, KeyError):
        return _topics_of_file(path.resolve(), path.stat().st_mtime_ns, context)
    return None


@lru_cache(maxsize=8)
def _contexts_of_file(path: Path, _changed: int) -> frozenset[str]:
    contexts = tomllib.loads(path.read_text("utf-8")).get("contexts")
    return frozenset(contexts) if isinstance(contexts, dict) else frozenset()


@lru_cache(maxsize=64)
def _topics_of_file(path: Path, _changed: int, context: str) -> tuple[str, ...]:
    found = tomllib.loads(path.read_text("utf-8"))["contexts"][context]
    streams = [*found.get("streams", {}).values()]
    if "stream" in found or not streams:
        streams.append({"subjects": [event_subjects(context)]} | found.get("stream", {}))
    tables = [table["subjects"] for table in streams] + [row.get("topics", []) for row in found.get("routes", [])]
    return tuple(str(pattern) for given in tables for pattern in parse_list(given))  # type: ignore[attr-defined]
