"""Which fields of events are about a person, and the master keys that wrap the keys of persons."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator

from relay.domain.errors import ConfigurationError, InvalidEvent
from relay.domain.personal import KEY_BYTES, Masters, PersonalFields, SealedKey
from relay.settings.archive import Endpoint
from relay.settings.in_sight import context_value, in_sight, read_declared
from relay.settings.section import Section
from relay.settings.values import parse_list


def _master_key(secret: SecretStr) -> SecretStr:
    with suppress(ValueError):
        if len(b64decode(secret.get_secret_value(), validate=True)) == KEY_BYTES:
            return secret
    raise ValueError("is not 32 bytes in base64: openssl rand -base64 32")


def _sealed(value: str) -> str:
    with suppress(ValueError):
        if b64decode(value, validate=True):
            return value
    raise ValueError("is not base64: the CiphertextBlob of the service")


class MasterSettings(Section):
    """A master key: 32 random bytes in base64. A file may hold it: ``key_file``.

    Or ``sealed``: such a key, encrypted by the key ``kms`` of AWS KMS, in ``region`` or at ``endpoint``.
    """

    key: Annotated[SecretStr, AfterValidator(_master_key)] | None = None
    kms: str | None = None
    sealed: Annotated[str, AfterValidator(_sealed)] | None = None
    region: str | None = None
    endpoint: Endpoint | None = None

    @model_validator(mode="after")
    def _is_one_key(self) -> Self:
        of_service = (self.kms is not None, self.sealed is not None)
        if not (all(of_service) if self.key is None else not any(of_service)):
            raise ValueError("must have key, or kms and sealed")
        return self

    def value(self) -> bytes | SealedKey:
        """The key as a value."""
        if self.key is not None:
            return b64decode(self.key.get_secret_value())
        assert self.kms is not None
        assert self.sealed is not None
        return SealedKey(self.kms, b64decode(self.sealed), self.region, self.endpoint)


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
        return Masters(self.master, {name: it.value() for name, it in self.masters.items()})


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
    declared = context_value(context, "personal", environ)
    if not isinstance(declared, dict):
        return {}
    return {
        name: _checked(PersonalFieldsSettings, it, f"contexts.{context}.personal.{name}").value()
        for name, it in declared.items()
    }


def declared_masters(environ: Mapping[str, str] | None = None) -> Masters | None:
    """The master keys of the configuration in sight; None without any. Raises ConfigurationError."""
    declared = in_sight("", environ)  # all variables: the file may name any
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


@lru_cache(maxsize=8)
def _masters(path: Path | None, _changed: int, variables: frozenset[tuple[str, str]]) -> Masters | None:
    declared = read_declared(path, variables).get("personal")
    return None if declared is None else _checked(PersonalSettings, declared, "personal").value()


def _checked(section: type[Any], data: object, field: str) -> Any:
    try:
        return section.model_validate(data)
    except ValidationError as error:
        said = "; ".join(it["msg"] for it in error.errors(include_input=False, include_url=False))
        raise ConfigurationError(said, field=field) from None
