"""The pages of the project, the blocks in them, and who runs each.

A test that runs a block takes it by `code`, with words and numbers that stand in the call: `taken` reads those.
So a block that nobody takes is known, and tests/repository/test_doc_blocks.py names it.
"""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docsite.reference import FOLDER, PAGES

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (goes on|not run: [^>]+) -->\n *$")

#: Commands of shell blocks that tests/integration/test_page_commands.py leaves to another test: how they begin,
#: and that test.
ELSEWHERE = {
    "python -m relay.devstack.dashboard": "tests/integration/test_dashboard.py",
    "python -m scheduler": "tests/integration/test_scheduler_process.py",
    "python -m tasks": "tests/acceptance/test_tasks.py",
    "dramatiq relay.actors": "tests/acceptance/test_delivery.py",
    "relay chaos": "tests/chaos/test_chaos.py",
    "relay db grant": "tests/integration/test_grants.py",
    "relay demo": "tests/acceptance/test_profiles.py",
    "relay dev": "tests/acceptance/test_dev.py",
    "relay context ": "tests/acceptance/test_moving.py",
    "pg_dump ": "tests/acceptance/test_moving.py",
    "relay reconcile --producer": "tests/integration/test_cli_reconcile.py",
    "relay handler check": "tests/integration/test_handler_check.py",
    "relay fleet --": "tests/acceptance/test_fleet_follows.py",
    "uvicorn --factory examples.cases_service.api": "tests/acceptance/test_cases_service.py",
    "python producer.py": "tests/acceptance/test_first_steps.py",
    "node ": "tests/acceptance/test_node.py",
    "PORT=8000 node ": "tests/acceptance/test_node.py",
    "npm ci": "tests/acceptance/nodejs.py",
    "psql ": "tests/integration/test_microdao_view.py",
    "curl --silent http://127.0.0.1:9465/readyz": "tests/acceptance/test_metrics.py",
    "curl 'http://127.0.0.1:9464/scale": "tests/integration/test_scale.py",
    "export ": "tests/repository/test_doc_blocks.py",
    "make ": "tests/repository/test_doc_blocks.py",
}
#: Commands that no test runs, and why.
NOBODY = {
    "pip install": "fetches packages from an index",
    "docker compose": "needs Docker",
    "systemctl ": "needs systemd",
    "journalctl ": "needs systemd",
    "jq": "a program of others reads what relay prints",
    "sort ": "a program of others reads what relay prints",
    ". ": "prepares a shell",
    "cd ": "prepares a shell",
    "PATH=": "prepares a shell",
    ".ci/run": "runs all tests",
}


@dataclass(frozen=True)
class Block:
    """``number``: which one of its language on its page, from 1. ``mark``: what a comment above it says."""

    page: str
    language: str
    number: int
    text: str
    mark: str


def pages() -> list[str]:
    """All but those that only repeat the code: they have signatures, and are compared with it."""
    found = [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("README.md"),
    ]
    made = {FOLDER / name for name in PAGES} - {FOLDER / "wire.md", FOLDER / "cli.md"}
    kept = (page for page in found if "node_modules" not in page.parts and page not in made)
    return sorted(page.relative_to(ROOT).as_posix() for page in kept)


@cache
def blocks(page: str) -> tuple[Block, ...]:
    read = (ROOT / page).read_text()
    found: list[Block] = []
    for match in _BLOCK.finditer(read):
        _, language, text = match.groups()
        number = 1 + sum(block.language == language for block in found)
        mark = _MARK.search(read[: match.start()])
        found.append(Block(page, language, number, textwrap.dedent(text), mark[1] if mark else ""))
    return tuple(found)


def code(page: str, language: str, *numbers: int) -> str:
    """The text of blocks of a page, put together."""
    found = {block.number: block.text for block in blocks(page) if block.language == language}
    return "\n".join(found[number] for number in numbers)


# --- who runs a block ---


def _calls() -> Iterator[ast.Call]:
    for path in (ROOT / "tests").rglob("*.py"):
        if "from tests.pages import" in (text := path.read_text()):
            yield from (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))


@cache
def taken() -> frozenset[Block]:
    """The blocks that a test takes: by `code`, or all of a page by `blocks`."""
    found: set[Block] = set()
    for call in _calls():
        name, words = getattr(call.func, "id", ""), [getattr(it, "value", None) for it in call.args]
        if name == "blocks" and words and isinstance(words[0], str):
            found.update(blocks(words[0]))
        elif name == "code" and words and isinstance(words[0], str):
            found.update(it for it in blocks(words[0]) if it.language == words[1] and {it.number} <= {*words[2:]})
    return frozenset(found)


# --- shell ---

_QUOTED = r"""'[^']*'|"(?:\\.|[^"])*\""""
#: A line up to its comment, and the commands in it.
_LINE = re.compile(rf"(?:{_QUOTED}|(?!\s#\s)[^'\"])*")
_COMMAND = re.compile(rf"(?:{_QUOTED}|(?! \| | && | \|\| )[^'\"])+")


def commands(text: str) -> Iterator[str]:
    """The commands of a shell block, those of a pipe too, without comments."""
    read = ""
    for line in text.splitlines():
        read += line + "\n"
        if read.endswith("\\\n"):
            read = read.removesuffix("\\\n") + " "
            continue
        try:
            shlex.split(read, comments=True)
        except ValueError:  # a quoted text goes on in the next line
            continue
        if found := _LINE.match(read):
            yield from (it.strip(" |&\n") for it in _COMMAND.findall(found[0]) if it.strip(" |&\n"))
        read = ""
    assert not read, read


def mentioned(page: str) -> list[str]:
    """The commands ``relay`` in the sentences of a page, with words such as ID where a reader puts an id."""
    found = re.findall(r"(?<!`)`(relay [a-z][^`]*)`", _BLOCK.sub("", (ROOT / page).read_text()))
    return [" ".join(command.split()) for command in found]


def beginning(command: str, among: dict[str, str]) -> str | None:
    """What ``among`` has for a command, by how it begins."""
    return next((value for begins, value in among.items() if command.startswith(begins)), None)


def operated(command: str) -> bool:
    """Whether tests/integration/test_page_commands.py runs a command."""
    ours = command.startswith("relay ") or (command.startswith("curl ") and "127.0.0.1:8085/" in command)
    return ours and beginning(command, ELSEWHERE) is None


@cache
def operating() -> dict[str, str]:
    """The commands for tests/integration/test_page_commands.py, each once, with the first page that has it."""
    found: dict[str, str] = {}
    for page in pages():
        for block in blocks(page):
            if block.language == "sh" and block not in taken() and not block.mark:
                for command in filter(operated, commands(block.text)):
                    found.setdefault(command, page)
    return found
