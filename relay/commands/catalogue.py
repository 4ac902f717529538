"""The catalogue of the declared events and commands: a JSON Schema for each version, in a folder of its own.

The application commits it. What is in the catalogue counts as published.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from relay.domain.errors import BreakingChange, InvalidEvent, InvalidRequest
from relay.domain.evolution import (
    REGISTERED,
    Change,
    ChangeCode,
    Schema,
    Version,
    Weight,
    compare,
    compare_catalogues,
)
from relay.events import declared_classes, declared_upcasts, registration_of

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class Declared:
    """What this process declares: a schema for each version, and the versions with several, unlike classes."""

    schemas: Mapping[Version, Schema]
    twice: Sequence[Change]


def declared(classes: Iterable[type[BaseModel]] = declared_classes) -> Declared:
    """The schemas of event and command classes; by default of all that are imported. Raises InvalidEvent."""
    schemas: dict[Version, Schema] = {}
    twice = []
    for model in sorted(classes, key=lambda it: (it.__module__, it.__qualname__)):
        version, schema = _described(model)
        other = schemas.setdefault(version, schema)
        if any(weight is not Weight.NOTE for _, weight, _, _ in compare(other, schema)):
            text = f"{model.__module__}.{model.__qualname__} and another class declare it, and differ"
            twice.append(Change(ChangeCode.DECLARED_TWICE, Weight.ERROR, version, "", text))
    return Declared(schemas, twice)


def _described(model: type[BaseModel]) -> tuple[Version, Schema]:
    registration = registration_of(model)
    if registration is None:
        raise InvalidEvent(f"{model.__name__} is not registered", field="event")
    try:
        schema = model.model_json_schema(mode="serialization")
    except (PydanticInvalidForJsonSchema, PydanticUserError) as error:
        raise InvalidEvent(
            f"{model.__module__}.{model.__qualname__} has no JSON Schema: {error.message}"[:500],
            field="event",
            hint="give the field a type that JSON has, or WithJsonSchema",
        ) from None
    personal = registration.personal
    about = {
        "aggregate_type": registration.aggregate_type,
        "aggregate_id": registration.aggregate_id,
        "personal": None if personal is None else {"subject": personal.subject, "fields": [*personal.fields]},
    }
    name = registration.topic or registration.event_type
    known = {key: value for key, value in about.items() if value is not None}
    described = {"$schema": _DIALECT, REGISTERED: known, **schema}
    return Version(name, registration.event_version), json.loads(json.dumps(described))


def reads(version: Version, known: Collection[Version]) -> bool:
    """Whether upcasters lead from a version to one that is known."""
    passed = version
    while (passed.name, passed.number) in declared_upcasts:
        passed = Version(passed.name, passed.number + 1)
        if passed in known:
            return True
    return False


class Catalogue:
    """A folder with a file ``<name>.v<version>.json`` for each published version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def published(self) -> Mapping[Version, Schema]:
        """What the folder holds. Raises InvalidRequest for a file that nobody can read."""
        found = {}
        for path in sorted(self.folder.glob("*.json")):
            name, _, number = path.name.removesuffix(".json").rpartition(".v")
            try:
                schema: Any = json.loads(path.read_bytes())
                found[Version(name, int(number))] = schema
            except ValueError:
                schema = None
            if not isinstance(schema, dict):
                raise InvalidRequest(
                    f"{path} is no schema of a version",
                    hint="the catalogue has a folder of its own; restore the file from version control",
                )
        return found

    def changes(self, found: Declared) -> Sequence[Change]:
        """What is different now."""
        changed = compare_catalogues(self.published(), found.schemas, lambda it: reads(it, found.schemas))
        return [*found.twice, *changed]

    def write(self, found: Declared, accepted: Iterable[str] = ()) -> Sequence[str]:
        """Write what has changed; returns the names of the files.

        ``accepted``: versions, as ``order_placed.v1``, whose breaking changes are wanted. A version that no class
        declares leaves the catalogue only so. Raises BreakingChange for any other.
        """
        taken, changes, published = {*accepted}, self.changes(found), self.published()
        if strange := taken - {str(it) for it in (*published, *found.schemas)}:
            raise InvalidRequest(f"no version is called {min(strange)[:80]!r}", hint="for example order_placed.v1")
        breaking = [it for it in changes if it.weight is Weight.ERROR and str(it.version) not in taken]
        if breaking:
            raise BreakingChange(
                f"{breaking[0].version} {breaking[0].path}: {breaking[0].code}, {breaking[0].text}",
                hint=f"declare a new version; if nobody ever had this one: --accept {breaking[0].version}",
            )
        written = []
        self.folder.mkdir(parents=True, exist_ok=True)
        for version, schema in found.schemas.items():
            if published.get(version) != schema:
                path = self._path(version)
                path.write_text(json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")
                written.append(path.name)
        for version in published:
            if version not in found.schemas and str(version) in taken:
                self._path(version).unlink()
                written.append(self._path(version).name)
        return sorted(written)

    def _path(self, version: Version) -> Path:
        return self.folder / f"{version}.json"
