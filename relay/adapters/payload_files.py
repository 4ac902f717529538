"""PayloadFiles: a bounded folder with the content of large payloads that this host has fetched.

Processes of one user share it. A file has its final name only once its size and digest are right. So a process may
be killed at any time: what it leaves unfinished is removed later.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, TypeVar

from relay.domain.errors import PayloadDamaged, PayloadUnreachable
from relay.domain.large import Reference

Result = TypeVar("Result")

_UNFINISHED: Final = ".part"
#: An unfinished file that nobody has written for so long is left over, in seconds.
_LEFT_OVER_S: Final = 600.0


class PayloadFiles:
    """Keeps at most about ``most`` bytes in ``directory``. The files that were used last stay."""

    def __init__(self, directory: Path, most: int) -> None:
        self.directory, self._most = directory, most

    def find(self, reference: Reference) -> Path | None:
        """The file of a payload, unless it must be fetched."""
        path = self.directory / reference.name
        with suppress(OSError):
            if path.stat().st_size == reference.size:
                os.utime(path)
                return path
        return None

    def use(self, reference: Reference, work: Callable[[bytes], Result]) -> Result | None:
        """What ``work`` makes of the content of a payload; None if that must be fetched, maybe again.

        Raises PayloadUnreachable, and what ``work`` raises.
        """
        path = self.find(reference)
        if path is None:
            return None
        with reaching(path):
            content = path.read_bytes()
        return work(content) if self._is_right(path, content, reference) else None

    def read(self, reference: Reference, into: memoryview) -> bool:
        """The same for who has room for it; False if it must be fetched."""
        path = self.find(reference)
        if path is None:
            return False
        with reaching(path), path.open("rb", buffering=0) as file:
            done = 0
            while done < len(into) and (count := file.readinto(into[done:])):
                done += count
        return self._is_right(path, into[:done], reference)

    def _is_right(self, path: Path, content: bytes | memoryview, reference: Reference) -> bool:
        """Whether content is that of a reference. A file with other content is removed."""
        if len(content) == reference.size and hashlib.sha256(content).hexdigest() == reference.sha256:
            return True
        path.unlink(missing_ok=True)
        return False

    @contextmanager
    def making(self, reference: Reference) -> Iterator[PayloadPart]:
        """Take the content of a payload. At the end it is checked, and then it has its name.

        Raises PayloadDamaged and PayloadUnreachable.
        """
        with reaching(self.directory):
            self._make_directory()
            self._make_room(reference.size)
            file = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed below
                prefix=f"{reference.name}.", suffix=_UNFINISHED, dir=self.directory, delete=False
            )
        path = Path(file.name)
        try:
            with reaching(path), file:
                part = PayloadPart(reference, file)
                yield part
            part.check()
            with reaching(path):
                path.replace(self.directory / reference.name)
        finally:
            path.unlink(missing_ok=True)

    def _make_directory(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.directory.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PayloadUnreachable(
                f"others may write to {self.directory}", hint="set payloads.directory to a folder of its own"
            )

    def _make_room(self, size: int) -> None:
        """Remove the files that were not used for longest, until there is room, and what is left over."""
        found, now = [], time.time()
        for path in self.directory.iterdir():
            with suppress(FileNotFoundError):
                state = path.stat()
                if path.suffix == _UNFINISHED and state.st_mtime < now - _LEFT_OVER_S:
                    path.unlink(missing_ok=True)
                else:
                    found.append((state.st_mtime, state.st_size, path))
        total = size + sum(it for _, it, _ in found)
        for _, stored, path in sorted(found):
            if total <= self._most:
                break
            if path.suffix != _UNFINISHED:
                path.unlink(missing_ok=True)
                total -= stored


class PayloadPart:
    """The content of a payload as it arrives. More than its size is not taken."""

    def __init__(self, reference: Reference, file: IO[bytes]) -> None:
        self._reference, self._file = reference, file
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, piece: bytes) -> None:
        """Add what comes next. Raises PayloadDamaged and OSError."""
        self._size += len(piece)
        if self._size > self._reference.size:
            self.check()
        self._digest.update(piece)
        self._file.write(piece)

    def check(self) -> None:
        """Raise PayloadDamaged unless size and digest are right."""
        it = self._reference
        if (self._size, self._digest.hexdigest()) == (it.size, it.sha256):
            return
        what = "size" if self._size != it.size else "digest"
        raise PayloadDamaged(
            f"the {what} of the payload of {it.id} is not that of its reference",
            hint=f"its row in the outbox of {it.context} was changed after it was published: publish it again",
        )


@contextmanager
def reaching(path: Path) -> Iterator[None]:
    """Raise PayloadUnreachable for what the disk cannot do now."""
    try:
        yield
    except OSError as error:
        raise PayloadUnreachable(
            f"{error.filename or path}: {error.strerror or error}", hint="is there room on the disk?"
        ) from error
