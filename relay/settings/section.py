"""The base of every table of relay.toml."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, get_args

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of relay.toml. Unknown keys are refused. Values do not change after start."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    #: Fields that get their value from the names of the enclosing tables. Users must not write them.
    filled: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def writable(cls) -> dict[str, str]:
        """Return the keys that may be written in this table, and the field of each."""
        return {field.alias or name: name for name, field in cls.model_fields.items() if name not in cls.filled}


def section_at(root: type[Section], path: Iterable[str]) -> type[Section]:
    """The model of the table at ``path``; if it is unknown, the model of the table around it."""
    model = root
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            continue  # the name of a context or subscription
        inner = [field.annotation, *get_args(field.annotation)]
        model = next((kind for kind in inner if isinstance(kind, type) and issubclass(kind, Section)), model)
    return model
