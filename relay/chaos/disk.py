"""A disk that can be full: a file system in memory below a server's directory, whose size is changed as it runs.

Takes root and Linux. Elsewhere `SmallDisk.mount` says no, and the kinds of faults that need one are left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_SIZE: Final = "4g"
#: What is left when the disk is full, in bytes: less than any server writes ahead.
_SPARE: Final = 65_536
_MODE: Final = "mode=755"


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
        """Leave next to nothing free."""
        state = os.statvfs(self.directory)
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        if not self._resize(str(used + _SPARE)):
            raise OSError(f"the disk of {self.directory} cannot be made small")

    def free(self) -> None:
        """Give back the room."""
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


def _run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603 - from this file
