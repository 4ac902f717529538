"""One handler executes a command: what is known of that when a worker starts."""

from __future__ import annotations

from consumer.handlers import Registry
from relay.domain.errors import InvalidHandler
from relay.domain.subject import ALL_COMMANDS, command_name
from relay.domain.topology import covers
from relay.events import declared_commands


def check_commands(registry: Registry, filter_subject: str) -> None:
    """Raise InvalidHandler if a command that a filter lets through has no handler in a module.

    Known are the commands declared in this process, and the one that the filter names. A filter for more than
    commands is not judged, as its stream may hold none.
    """
    if not covers(ALL_COMMANDS, filter_subject):
        return
    for subject, version in sorted(declared_commands):
        name = command_name(subject) or ""
        if covers(filter_subject, subject) and registry.find(name, version) is None:
            raise _without_handler(registry, f"{name} v{version}")
    named = command_name(filter_subject)
    if named is not None and named not in {kind for kind, _ in registry.handlers}:
        raise _without_handler(registry, named)


def _without_handler(registry: Registry, command: str) -> InvalidHandler:
    message = f"the command {command} has no handler in {registry.name}, which handles {registry.known()}"
    return InvalidHandler(message, field="handler", hint="decorate one with @handles(...)")
