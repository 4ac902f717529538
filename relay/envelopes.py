"""The envelopes that the settings name: what a context writes, and what a subscription reads.

An envelope of the application's own is imported here, so only processes and commands that publish or read messages
need its module.
"""

from __future__ import annotations

import importlib
from typing import Final

from relay.domain.envelopes import ENVELOPES, Envelope
from relay.domain.envelopes.cloudevents import Wording, cloudevents
from relay.domain.envelopes.own import guarded
from relay.schemas import names, versions
from relay.settings import KeyPath, SettingProblem, Settings, unusable

#: The name of an application's own envelope in its module, if the setting gives no name.
DEFAULT_NAME: Final = "ENVELOPE"


def writer(settings: Settings, context: str) -> Envelope:
    """The envelope in which a context publishes. Raises ConfigurationError."""
    found = settings.contexts[context]
    if found.envelope == "cloudevents":
        attributes = found.cloudevents.model_dump(include={"source", "subject", "dataschema"}, exclude_none=True)
        return cloudevents(Wording(context, found.cloudevents.mode == "structured", tuple(attributes.items())))
    return _find(settings, found.envelope, ("contexts", context, "envelope"))


def reader(settings: Settings, context: str, subscription: str) -> Envelope:
    """The envelope that a subscription reads. Raises ConfigurationError."""
    found = settings.contexts[context].subscriptions[subscription]
    return _find(settings, found.envelope, ("contexts", context, "subscriptions", subscription, "envelope"))


def _validated(envelope: Envelope, name: str) -> Envelope:
    """The envelope, with each body checked by the JSON Schema of its version."""
    from relay.adapters.jsonschema import validated  # noqa: PLC0415 - most fleets need no validator

    return validated(envelope, "schema_version", versions(name))


def _find(settings: Settings, name: str, path: KeyPath) -> Envelope:
    if (ours := ENVELOPES.get(name)) is not None:
        return _validated(ours, name) if name in names() else ours
    module, _, attribute = name.removeprefix("python:").partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute or DEFAULT_NAME, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        problem = SettingProblem(path, f"there is no module {module!r}", "is it on PYTHONPATH?")
        raise unusable(settings, problem) from None
    if not isinstance(found, Envelope):
        message = f"{module} has no Envelope that is called {attribute or DEFAULT_NAME}"
        raise unusable(settings, SettingProblem(path, message, "from relay.domain.envelopes import Envelope"))
    return guarded(found, name)
