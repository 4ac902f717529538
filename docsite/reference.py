"""``python -m docsite.reference``: write the pages that are made from the code. A test says when they are old."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docsite import commands, library, settings, wire

FOLDER: Final = Path(__file__).parents[1] / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "cli.md": commands.page,
    "python.md": library.page,
    "settings.md": settings.page,
    "wire.md": wire.page,
}


def main() -> None:
    """Write all of them."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()
