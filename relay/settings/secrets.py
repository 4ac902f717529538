"""Secrets from files: ``token_file`` instead of ``token``, ``NATS_TOKEN_FILE`` instead of ``NATS_TOKEN``.

Every key that holds a secret accepts this form. Files are read after all sources are merged. So a file that a
stronger source overrides need not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import SecretStr

from relay.settings.section import Section, section_at

SUFFIX: Final = "_file"
#: The longest secret, in bytes. A longer file is not a secret.
_MAX_SECRET_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class FromFile:
    """A secret that is still in its file. In its text, ``{context}`` stands for ``context``, if one is given."""

    path: str
    context: str | None = None

    def read(self) -> str:
        """Read the secret, without line breaks at its end. Raises ValueError, which never shows the content."""
        path = Path(self.path)
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
        return text if self.context is None else text.replace("{context}", self.context)


def secret_of(root: type[Section], path: tuple[str, ...]) -> str | None:
    """The key of the secret, if the key at ``path`` names its file; else None."""
    section = section_at(root, path[:-1])
    name = path[-1].removesuffix(SUFFIX)
    if name == path[-1] or path[-1] in section.model_fields or name not in section.model_fields:
        return None
    return name if _holds_secret(section.model_fields[name].annotation) else None


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_holds_secret, get_args(annotation)))
