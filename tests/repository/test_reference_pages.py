"""The reference is what the code says: codes of errors, commands, what applications import."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docsite.reference import FOLDER, PAGES

ROOT = Path(__file__).parents[2]
#: Of a class, and of a line that the command prints where no class is raised.
CODE = re.compile(r'(?:^    code(?:: ClassVar\[str\])? = "|"error (?=[A-Z_]+: ))([A-Z_]+)', re.MULTILINE)


@pytest.fixture(scope="module")
def codes() -> set[str]:
    files = [path for name in ("relay", "tasks", "consumer", "scheduler") for path in (ROOT / name).rglob("*.py")]
    return {code for path in files for code in CODE.findall(path.read_text())}


def test_every_error_has_its_line_and_no_other_has(codes: set[str]) -> None:
    lines = re.findall(r"^\| `([A-Z_]+)` \| (.*) \| (.*) \|$", (FOLDER / "errors.md").read_text(), re.MULTILINE)
    assert len(codes) > 60
    assert sorted(code for code, _, _ in lines) == sorted(codes)
    assert [code for code, cause, remedy in lines if not cause.strip() or not remedy.strip()] == []


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    """Run `python -m docsite.reference` when a command, an option or a docstring has changed."""
    assert (FOLDER / name).read_text() == PAGES[name](), "run: .venv/bin/python -m docsite.reference"
