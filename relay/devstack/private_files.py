"""Files and directories that nobody else on the machine can read, and the random passwords kept in them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

_ONLY_US: Final = 0o700
#: PostgreSQL does not run as root and must enter the directories above its data. It can list none of them.
_ENTER_ONLY: Final = 0o711


def make_directory(path: Path) -> None:
    """Create a directory if it is missing, and remove the rights of other users on it."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(path.stat().st_mode & (_ENTER_ONLY if os.geteuid() == 0 else _ONLY_US))


def opener(path: str, flags: int) -> int:
    """Open a file for `open` (its argument ``opener``). A new file is readable only by us."""
    return os.open(path, flags, 0o600)


def write(path: Path, text: str) -> None:
    """Replace a file atomically by one that only we can read."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with open(draft, "x", opener=opener) as file:
        file.write(text)
    draft.replace(path)


def password(path: Path) -> str:
    """Return the password in a file. If there is none, make a random one of letters and digits."""
    if not path.exists() or not path.read_text():
        write(path, secrets.token_hex(16))
    return path.read_text()
