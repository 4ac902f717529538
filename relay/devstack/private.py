"""Files and directories that nobody else on the machine can read, and the random passwords kept in them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

_ONLY_US: Final = 0o700
#: PostgreSQL, which does not run as root, has to enter the directories above its data. It can list none of them.
_ENTER_ONLY: Final = 0o711


def make_directory(path: Path) -> None:
    """Create a directory if it is not there, and take from others what they may do to it."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(path.stat().st_mode & (_ENTER_ONLY if os.geteuid() == 0 else _ONLY_US))


def opener(path: str, flags: int) -> int:
    """Open for `open` (its argument ``opener``) a file that, if new, only we can read."""
    return os.open(path, flags, 0o600)


def write(path: Path, text: str) -> None:
    """Replace a file by one that only we can read, at once and as a whole."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with open(draft, "x", opener=opener) as file:
        file.write(text)
    draft.replace(path)


def password(path: Path) -> str:
    """Return the password kept in a file, after making a random one (letters and digits) if there is none."""
    if not path.exists() or not path.read_text():
        write(path, secrets.token_hex(16))
    return path.read_text()


def at_port(url: str, port: int) -> str:
    """Return an address with another port, of a proxy before the server; user and password stay."""
    parts = urlsplit(url)
    head, _, _ = parts.netloc.rpartition(":")
    return urlunsplit(parts._replace(netloc=f"{head}:{port}"))
