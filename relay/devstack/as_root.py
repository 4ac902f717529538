"""Run PostgreSQL when we are root: under which account, and with its files in which directory.

PostgreSQL refuses to run as root. The other account must be able to enter every directory above a file. It cannot
enter a project below ``/root``, and we do not change the rights of a user's directories. Then the files go to a
shelter, ``/var/lib/jetrelay``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from relay.devstack.errors import DevStackError

#: Where files go that the other account could not reach.
SHELTER: Final = Path("/var/lib/jetrelay")
_ENTER = 0o001
_READ = 0o004
_READ_AND_ENTER = _READ | _ENTER
_NAME = "nobody"


@dataclass(frozen=True, slots=True)
class Account:
    """A user and group to run a server as."""

    uid: int
    gid: int


def server_account() -> Account | None:
    """Return the account to run as when we are root, else None. Raises DevStackError if the account is missing."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(_NAME)
    except KeyError as error:
        raise DevStackError(
            f"PostgreSQL does not run as root, and there is no account {_NAME!r} to run it as",
            hint="run as an ordinary user",
        ) from error
    return Account(entry.pw_uid, entry.pw_gid)


def home_for(directory: Path, account: Account | None, shelter: Path = SHELTER) -> Path:
    """Return a directory for the data of a server started in ``directory``: that one, or one in the shelter.

    A link ``elsewhere`` in ``directory`` remembers the choice; shelters whose link is gone are removed.
    """
    if account is None or _allows(directory, _ENTER):
        return directory
    link = directory / "elsewhere"
    if link.is_dir():
        return link.resolve()
    _remove_abandoned(shelter)
    home = Path(tempfile.mkdtemp(prefix="data-", dir=_opened(shelter)))
    home.chmod(0o711)
    link.unlink(missing_ok=True)
    link.symlink_to(home)  # before "origin", so that no process takes the home for abandoned
    (home / "origin").write_text(str(link))
    return home


def readable_package(package: Path, version: str, account: Account | None, shelter: Path = SHELTER) -> Path:
    """Return ``package`` (an installed wheel's folder), or a copy of it that ``account`` can read and execute."""
    if account is None or _allows(package, _READ_AND_ENTER):
        return package
    copy = _opened(shelter) / f"{package.name}-{version}"
    if not copy.exists():
        draft = Path(tempfile.mkdtemp(prefix="copy-", dir=shelter))
        for folder in (package, package.with_name(f"{package.name}.libs")):
            if folder.exists():
                shutil.copytree(folder, draft / folder.name, ignore=shutil.ignore_patterns("include"))
        _open_to_all(draft)
        try:
            draft.rename(copy)
        except OSError:  # another process was faster
            shutil.rmtree(draft)
    return copy / package.name


def _open_to_all(folder: Path) -> None:
    """Do ``chmod -R a+rX``."""
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        executable = path.is_dir() or mode & stat.S_IXUSR
        path.chmod(mode | (_READ_AND_ENTER if executable else _READ))


def _allows(path: Path, bits: int) -> bool:
    """Whether anybody may enter all directories above ``path``, and do ``bits`` to ``path`` itself."""
    path = path.resolve()
    above = all(parent.stat().st_mode & _ENTER for parent in path.parents)
    return above and path.stat().st_mode & bits == bits


def _opened(shelter: Path) -> Path:
    shelter.mkdir(parents=True, exist_ok=True)
    shelter.chmod(0o711)
    return shelter


def _remove_abandoned(shelter: Path) -> None:
    for origin in shelter.glob("data-*/origin"):
        if Path(origin.read_text()).resolve() != origin.parent.resolve():
            shutil.rmtree(origin.parent, ignore_errors=True)
