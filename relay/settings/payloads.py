"""Large payloads: what stays in the outbox, and the room that workers have for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from relay.domain.errors import ConfigurationError
from relay.domain.large import MAX_LARGE_BYTES
from relay.settings.in_sight import context_value
from relay.settings.section import Section
from relay.settings.values import Size

_MB: Final = 1024**2
#: Claims show smaller events at once, so no limit is lower.
_LEAST: Final = 32 * 1024

PayloadLimit = Annotated[Size, Field(ge=_LEAST, le=MAX_LARGE_BYTES)]


class PayloadsSettings(Section):
    """Room for large payloads on a host and in a worker.

    ``directory``: where they are kept once they are fetched; by default a folder of the user among the temporary
    files. ``disk``: for how many bytes. ``memory``: how many bytes of them a process handles at a time.
    """

    directory: Path | None = None
    disk: Size = Field(default=1024 * _MB, ge=2 * MAX_LARGE_BYTES)
    memory: Size = Field(default=MAX_LARGE_BYTES, ge=MAX_LARGE_BYTES)

    @property
    def folder(self) -> Path:
        """The directory."""
        return self.directory or Path(tempfile.gettempdir(), f"jetrelay-payloads-{os.getuid()}")


def declared_payload_limit(context: str, environ: Mapping[str, str] | None = None) -> int | None:
    """The limit that the configuration in sight declares, for an `Outbox`. Raises ConfigurationError."""
    value = context_value(context, "payload_limit", environ)
    try:
        return None if value is None else TypeAdapter(PayloadLimit).validate_python(value)
    except ValidationError as error:
        said = "; ".join(it["msg"] for it in error.errors(include_input=False, include_url=False))
        raise ConfigurationError(said, field=f"contexts.{context}.payload_limit") from None
