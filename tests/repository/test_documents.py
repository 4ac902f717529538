"""The pages of docs/ hang together: each is in the navigation of the site, and each link leads somewhere.

`make docs` checks links between pages, and anchors. Here is what it cannot see.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
#: Not of the site, and read by themselves.
OUTSIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "SPECIFICATION.md", "AGENTS.md", "llms.txt")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def listed(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        match entry:
            case str():
                yield entry
            case dict():
                for value in entry.values():
                    yield from listed(value if isinstance(value, list) else [value])


def links(page: Path) -> list[str]:
    found = LINK.findall(CODE.sub("", page.read_text()))
    return [link for link in found if not link.startswith(("#", "https://", "http://"))]


def test_each_page_is_in_the_navigation_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(listed(nav)) == [page.relative_to(DOCS).as_posix() for page in PAGES]


def test_no_link_of_the_site_leaves_it() -> None:
    """A file of the repository is named by its path, as code: the site has no copy of it."""
    assert len(PAGES) > 50
    targets = [(page, (page.parent / link.partition("#")[0]).resolve()) for page in PAGES for link in links(page)]
    assert targets
    assert [(page.name, str(target)) for page, target in targets if not target.is_relative_to(DOCS)] == []


@pytest.mark.parametrize("name", OUTSIDE)
def test_each_link_of_a_file_beside_the_site_leads_to_a_file(name: str) -> None:
    found = [link.partition("#")[0] for link in links(ROOT / name)]
    assert found
    assert [link for link in found if not (ROOT / link).exists()] == []


def test_the_list_for_agents_has_each_page_but_single_decisions() -> None:
    listed_there = {link.removeprefix("docs/") for link in links(ROOT / "llms.txt") if link.startswith("docs/")}
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES}
    assert listed_there == {page for page in pages if not page.startswith("decisions/0")}


def test_the_pages_are_no_longer_than_somebody_reads() -> None:
    """Say a thing once and shortly: what code or another page says need not stand here."""
    assert sum(len(page.read_text().split()) for page in PAGES) <= 70_000
