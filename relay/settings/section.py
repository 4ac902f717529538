"""What every table of relay.toml is."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of relay.toml. Unknown keys are refused; values do not change after start."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    #: Fields that the names of the enclosing tables fill, so that nobody writes them.
    filled: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def writable(cls) -> list[str]:
        """Return the keys that may be written in this table."""
        return [key for key in cls.model_fields if key not in cls.filled]
