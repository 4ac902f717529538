"""Which lines of a traceback are the application's: not Python's, not a library's, and not ours.

Compiled code (Cython) names its source by a path of the machine that built it. So a line belongs where the file of
its module is, too.
"""

from __future__ import annotations

import dis
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, TracebackType
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).parents[2]
#: Folders of installed packages: those of this Python, and whatever is called so.
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_INSTALLED: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_OURS: Final = tuple(f"{_ROOT / name}{os.sep}" for name in ("relay", "consumer", "tasks", "scheduler"))
#: Files that are neither installed nor of the application: Python's own, and code without a file.
_PYTHON: Final = ("<", *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_RAISE: Final = bytes([dis.opmap["RAISE_VARARGS"]])


class Line(NamedTuple):
    """A line of code that was running, the name of its module, where that stands. ``step``: in its bytecode."""

    code: CodeType
    module: str
    number: int
    step: int
    is_ours: bool
    is_library: bool
    is_application: bool

    @property
    def at(self) -> str:
        """The line by its module, such as ``myapp.cases.close:12``."""
        return f"{self.module}.{self.code.co_name}:{self.number}"

    def looks_up(self, word: object) -> bool:
        """Whether the line looks for a word that its function writes: a constant or a name, and so no data."""
        raises = self.code.co_code[self.step : self.step + 1] == _RAISE
        return not raises and isinstance(word, str) and word in {*self.code.co_names, *_texts(self.code)}


def _texts(code: CodeType) -> Iterator[str]:
    return (it for it in code.co_consts if isinstance(it, str))


def lines(error: BaseException) -> Iterator[Line]:
    """The lines of an exception's traceback, the innermost last."""
    trace = traceback_of(error)
    while trace is not None:
        yield _line(trace)
        trace = trace.tb_next


def traceback_of(error: BaseException) -> TracebackType | None:
    """The traceback of an exception. Its class has no say."""
    found: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return found


def _line(trace: TracebackType) -> Line:
    frame = trace.tb_frame
    code, module = frame.f_code, frame.f_globals.get("__name__")
    files = code.co_filename, file if isinstance(file := frame.f_globals.get("__file__"), str) else ""
    ours = any(it.startswith(_OURS) for it in files)
    library = not ours and any(it.startswith(_LIBRARIES) or any(part in it for part in _INSTALLED) for it in files)
    application = not (ours or library or any(it.startswith(_PYTHON) for it in files))
    name = module if isinstance(module, str) else "?"
    return Line(code, name, trace.tb_lineno, trace.tb_lasti, ours, library, application)


def last_line(error: BaseException) -> Line | None:
    """Where an error was raised: the last line of the application, if it has one.

    An application may be installed like a library. So without such a line it is the last one of the package that
    we called first.
    """
    found = [*lines(error)]
    if own := [it for it in found if it.is_application]:
        return own[-1]
    libraries = [it for it in found if it.is_library]
    first = [it for it in libraries if _package(it) == _package(libraries[0])]
    return first[-1] if first else None


def _package(line: Line) -> str:
    return line.module.partition(".")[0]
