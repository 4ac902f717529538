"""Which fields of events are about a person, and the master keys that wrap the keys of persons."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator

from relay.domain.errors import ConfigurationError, InvalidEvent
from relay.domain.personal import Masters, PersonalFields
from relay.settings.section import Section
from relay.settings.values import parse_list

_KEY_BYTES: Final = 32


def _master_key(secret: SecretStr) -> SecretStr:
    with suppress(ValueError):
        if len(b64decode(secret.get_secret_value(), validate=True)) == _KEY_BYTES:
            return secret
    raise ValueError("is not 32 bytes in base64: openssl rand -base64 32")


class MasterSettings(Section):
    """A master key: 32 random bytes in base64. A file may hold it: ``key_file``."""

    key: Annotated[SecretStr, AfterValidator(_master_key)]


class PersonalSettings(Section):
    """The keys for personal fields of events: docs/how-to/personal-data.md.

    ``masters``: the master keys by their names. ``master``: the one that wraps new keys; the others only unwrap.
    """

    master: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    masters: dict[str, MasterSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _knows_its_master(self) -> Self:
        if (self.master is None) != (not self.masters) or (self.master and self.master not in self.masters):
            raise ValueError("master must be the name of one of masters")
        return self

    def value(self) -> Masters | None:
        """The keys as a value; None without any."""
        if self.master is None:
            return None
        keys = {name: b64decode(it.key.get_secret_value()) for name, it in self.masters.items()}
        return Masters(self.master, keys)


class PersonalFieldsSettings(Section):
    """The personal fields of an event type. ``subject``: the field that holds the person's id."""

    subject: str
    fields_: Annotated[tuple[str, ...], BeforeValidator(parse_list)] = Field(alias="fields")

    @model_validator(mode="after")
    def _are_fields(self) -> Self:
        try:
            self.value()
        except InvalidEvent as error:
            raise ValueError(f"{error.field} {error.message}") from None
        return self

    def value(self) -> PersonalFields:
        """The section as a value."""
        return PersonalFields(self.subject, self.fields_)


# --- without the rest of the configuration: for an `Outbox` ---


def declared_personal(context: str, environ: Mapping[str, str] | None = None) -> Mapping[str, PersonalFields]:
    """The personal fields that the configuration in sight declares, by event type. Raises ConfigurationError."""
    declared = _in_sight(f"RELAY_CONTEXTS__{context.upper()}__PERSONAL", environ)
    return {} if declared is None else _fields(*declared, context)


def declared_masters(environ: Mapping[str, str] | None = None) -> Masters | None:
    """The master keys of the configuration in sight; None without any. Raises ConfigurationError."""
    declared = _in_sight("", environ)  # all variables: the file may name any
    return None if declared is None else _masters(*declared)


def needed_masters() -> Masters:
    """The master keys of the configuration in sight. Raises ConfigurationError, also if it has none."""
    if (masters := declared_masters()) is None:
        raise ConfigurationError(
            "no master key wraps the keys of personal fields",
            field="personal",
            hint="declare [personal] with master and masters in relay.toml: docs/how-to/personal-data.md",
        )
    return masters


def _in_sight(
    start: str, environ: Mapping[str, str] | None
) -> tuple[Path | None, int, frozenset[tuple[str, str]]] | None:
    """What decides: the file, when it was changed, and variables. None if there is nothing."""
    from relay.settings.sources import find_file  # noqa: PLC0415 - it knows all sections

    environ = os.environ if environ is None else environ
    path = find_file(None, {name: value for name, value in environ.items() if value})
    variables = frozenset((name, value) for name, value in environ.items() if name.upper().startswith(start))
    with suppress(OSError):
        if path is not None:
            return path.resolve(), path.stat().st_mtime_ns, variables
    return (None, 0, variables) if variables else None


@lru_cache(maxsize=64)
def _fields(
    path: Path | None, _changed: int, variables: frozenset[tuple[str, str]], context: str
) -> Mapping[str, PersonalFields]:
    contexts = _read(path, variables).get("contexts", {})
    found = contexts.get(context) if isinstance(contexts, dict) else None
    declared = found.get("personal") if isinstance(found, dict) else None
    if not isinstance(declared, dict):
        return {}
    return {
        name: _checked(PersonalFieldsSettings, it, f"contexts.{context}.personal.{name}").value()
        for name, it in declared.items()
    }


@lru_cache(maxsize=8)
def _masters(path: Path | None, _changed: int, variables: frozenset[tuple[str, str]]) -> Masters | None:
    declared = _read(path, variables).get("personal")
    return None if declared is None else _checked(PersonalSettings, declared, "personal").value()


def _read(path: Path | None, variables: frozenset[tuple[str, str]]) -> dict[str, Any]:
    from relay.settings.model import Settings  # noqa: PLC0415 - it has these sections
    from relay.settings.sources import read_sources  # noqa: PLC0415

    with suppress(ConfigurationError):
        return read_sources(Settings, path, dict(variables)).data
    return {}


def _checked(section: type[Any], data: object, field: str) -> Any:
    try:
        return section.model_validate(data)
    except ValidationError as error:
        said = "; ".join(it["msg"] for it in error.errors(include_input=False, include_url=False))
        raise ConfigurationError(said, field=field) from None
