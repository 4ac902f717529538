"""A disk that can be full: a file system in memory below a server's directory, which can shrink while in use.

It needs root and Linux. Elsewhere the kinds of faults that need it are left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from relay.devstack import Server

_SIZE: Final = "4g"
#: What is left when the disk is full, in bytes: less than any server writes ahead.
SPARE: Final = 65_536
_TRIES: Final = 50
_MODE: Final = "mode=755"
#: Where servers keep their data, below their directories.
_DATA: Final = ("data", "jetstream")


class SmallDisk:
    """The disk of a directory. Its content outlives `unmount` as ordinary files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._mounted = False

    def mount(self) -> bool:
        """Lay the disk over the directory, which is made if need be; False if this user may not."""
        if sys.platform != "linux" or os.geteuid() != 0:
            return False
        self.directory.mkdir(parents=True, exist_ok=True)
        done = _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE},{_MODE}", "tmpfs", str(self.directory))
        self._mounted = done
        return done

    def holds(self, path: Path) -> bool:
        """Whether a file or directory lies on this disk."""
        return self._mounted and path.exists() and path.stat().st_dev == self.directory.stat().st_dev

    def fill(self) -> None:
        """Leave almost no space free."""
        for _ in range(_TRIES):  # a server that writes meanwhile may need more than was looked at
            state = os.statvfs(self.directory)
            used = (state.f_blocks - state.f_bfree) * state.f_frsize
            if self._resize(str(used + SPARE)):
                return
        raise OSError(f"the disk of {self.directory} cannot be made small")

    def free(self) -> None:
        """Give back the space."""
        if not self._resize(_SIZE):
            raise OSError(f"the disk of {self.directory} cannot be made large again")

    def unmount(self) -> None:
        """Turn the content into ordinary files; harmless when not mounted. Nobody may use it any more."""
        if not self._mounted:
            return
        kept = self.directory.with_name(f"{self.directory.name}.kept")
        _run("cp", "-a", str(self.directory), str(kept))
        self._mounted = not _run("umount", str(self.directory))
        if not self._mounted:
            self.directory.rmdir()
            shutil.move(kept, self.directory)

    def _resize(self, size: str) -> bool:
        return _run("mount", "-o", f"remount,size={size},{_MODE}", str(self.directory))


class SmallDisks:
    """The disks of servers, by the servers' names."""

    def __init__(self) -> None:
        self._disks: list[SmallDisk] = []
        self._servers: dict[str, tuple[Server, SmallDisk]] = {}

    def lay_under(self, *servers: Server) -> None:
        """Give each a disk, if this user may, before it makes its files."""
        for server in servers:
            disk = SmallDisk(server.directory)
            if disk.mount():
                self._disks.append(disk)
                self._servers[server.name] = server, disk

    def __contains__(self, name: object) -> bool:
        """Whether a server has one. It may keep its data elsewhere, as PostgreSQL does for some roots."""
        server, disk = self._servers.get(str(name), (None, None))
        data = [server.directory / part for part in _DATA] if server else []
        return any(disk is not None and disk.holds(path) for path in data)

    def __getitem__(self, name: str) -> SmallDisk:
        return self._servers[name][1]

    def unmount(self) -> None:
        """Turn all of them into ordinary files, once no server runs any more."""
        for disk in self._disks:
            disk.unmount()


def _run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603 - from this file
