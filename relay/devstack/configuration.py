"""The configuration of a development fleet: the user's own, with every server replaced by ours.

A development fleet never connects to the databases, NATS and Redis that relay.toml or the shell name: it would
migrate them and handle their messages.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from relay.devstack import private_files
from relay.devstack.stack import DevStack
from relay.settings import (
    CONFIG_VARIABLE,
    OWN_SERVERS,
    Settings,
    find_file,
    load_settings,
    names_server,
    without_handler,
)

_PRODUCT: Final = ("RELAY_", "NATS_")
#: Stands for the handler of a subscription until its address is known.
_UNKNOWN: Final = "http://127.0.0.1:1/handle"

#: Subscriptions by context.
Subscriptions = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings, and the environment in which our processes read the same settings.

    ``variables`` is the part of the environment that this module sets.
    """

    settings: Settings
    environment: Mapping[str, str]
    variables: Mapping[str, str]

    def write_shell(self, path: Path) -> None:
        """Write the variables for a shell: after ``. path`` every command uses the same servers.

        The addresses contain passwords: only we can read the file.
        """
        lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(self.variables.items())]
        private_files.write(path, "\n".join(lines) + "\n")


def base_environment(*, inherit: bool = True) -> dict[str, str]:
    """Return our environment without the servers it names; without ``inherit`` also without our settings.

    A shell that has read the file of an earlier fleet names its sample handlers. They are gone, and do not count.
    """
    samples = os.environ.get(OWN_SERVERS, "").split(",")
    kept = {name: it for name, it in os.environ.items() if not names_server(name) and name not in samples}
    if inherit:
        return kept
    return {name: value for name, value in kept.items() if not name.startswith(_PRODUCT)}


def declared(config: Path | None, environment: Mapping[str, str]) -> Settings:
    """Read the contexts and subscriptions before there are servers or handlers. Raises ConfigurationError."""
    address = {"DATABASE_URL": "postgresql://localhost/{context}"}
    unnamed = without_handler(config, environment)
    handlers = {
        handler_variable(name, it): _UNKNOWN for name, subscriptions in unnamed.items() for it in subscriptions
    }
    return load_settings(config, {**environment, **address, **handlers, OWN_SERVERS: "1"})


def sampled(config: Path | None, environment: Mapping[str, str], *, everything: bool) -> Subscriptions:
    """Say which subscriptions a sample handles: those that name no handler, or every one.

    Raises ConfigurationError.
    """
    contexts = declared(config, environment).contexts
    if not everything:
        return without_handler(config, environment)
    return {name: [*context.subscriptions] for name, context in contexts.items() if context.subscriptions}


def configure(
    stack: DevStack,
    config: Path | None,
    environment: Mapping[str, str],
    handlers: Mapping[tuple[str, str], str],
) -> Configuration:
    """Point the configuration to the stack's servers.

    ``handlers``: the URL of the sample handler, for each context and subscription that has one.
    """
    samples = {handler_variable(name, subscription): url for (name, subscription), url in handlers.items()}
    ours = {
        **samples,
        "NATS_URL": stack.nats.url,
        "RELAY_NATS__MONITOR": stack.nats.monitor_url,
        "REDIS_URL": stack.valkey.url,
        OWN_SERVERS: ",".join(samples) or "1",
    }
    if (file := find_file(config, environment)) is not None:
        ours[CONFIG_VARIABLE] = str(file.absolute())
    for name in declared(config, environment).contexts:
        ours[variable(name, "DATABASE_URL")] = stack.postgres.url_of(name)
    everything = {**environment, **ours}
    return Configuration(load_settings(config, everything), everything, ours)


def handler_variable(context: str, subscription: str) -> str:
    """Return the variable that sets the handler of a subscription."""
    return variable(context, "SUBSCRIPTIONS", subscription, "HANDLER")


def variable(context: str, *path: str) -> str:
    """Return the variable that sets a key of a context."""
    return "__".join(("RELAY_CONTEXTS", context, *path)).upper().replace("-", "_")
