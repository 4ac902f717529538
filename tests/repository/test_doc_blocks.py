"""Every block of every page is run by a test, or says why not: by its language, its mark, or how its lines begin.

Here configurations are loaded and variables are set. Tests that take a block by `code` of
tests/pages.py run it. Commands `relay` are run by tests/integration/test_page_commands.py.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from base64 import b64encode
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from dramatiq.cli import make_argument_parser
from typer.testing import CliRunner

from relay.cli import create_app
from relay.settings import load_settings
from tests.pages import (
    ELSEWHERE,
    NOBODY,
    ROOT,
    Block,
    beginning,
    blocks,
    commands,
    mentioned,
    operated,
    pages,
    taken,
)

#: Languages that no test runs, and why.
SHOWN = {
    "http": "docsite.wire makes these blocks from real messages",
    "ini": "units of systemd, which no test has; the commands in them are known, see below",
    "mermaid": "pictures, which `make docs` draws",
    "text": "what a program prints",
}
#: Languages whose blocks are all read here.
READ = {"toml"}
ALL = [block for page in pages() for block in blocks(page)]
APP = create_app()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def ids(block: Block) -> str:
    return f"{block.page}:{block.language}:{block.number}"


def of(language: str) -> list[Any]:
    """The blocks of a language; one that goes on holds the one before it, too."""
    found, before = [], ""
    for block in ALL:
        if block.language == language:
            before = before + block.text if block.mark == "goes on" else block.text
            found.append(pytest.param(before, id=ids(block)))
    return found


def lines() -> dict[str, str]:
    """The commands of shell blocks, units and sentences, and where each is."""
    found: dict[str, str] = {}
    for block in ALL:
        started = re.findall(r"^ExecStart=\S*/(.*)$", block.text, re.MULTILINE) if block.language == "ini" else ()
        for command in (*started, *(commands(block.text) if block.language == "sh" else ())):
            found.setdefault(command.removeprefix(".venv/bin/"), ids(block))
    for page in pages():
        for command in mentioned(page):
            found.setdefault(command, page)
    return found


def unrun(block: Block) -> list[str]:
    """What of a block no test runs, without a reason."""
    if block.language in SHOWN or block.language in READ or block in taken() or block.mark.startswith("not run: "):
        return []
    if block.language != "sh":
        return [block.text]
    known = ELSEWHERE | NOBODY
    return [it for it in commands(block.text) if not operated(it) and beginning(it, known) is None]


@pytest.mark.parametrize("block", ALL, ids=ids)
def test_a_block_is_run_by_a_test_or_says_why_not(block: Block) -> None:
    """Take it in a test by `code`; or write ``<!-- not run: WHY -->`` above it."""
    assert unrun(block) == []


@pytest.mark.parametrize("page", pages())
def test_a_block_is_written_in_the_way_that_is_read_here(page: str) -> None:
    fences = re.findall(r"^[ >\t]*(?:```|~~~)", (ROOT / page).read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page))


def test_a_new_block_is_not_overlooked() -> None:
    for language, text in {"python": "add()\n", "sh": "unknown --it\n", "sql": "SELECT 1\n", "": "x\n"}.items():
        assert unrun(Block("docs/new.md", language, 1, text, ""))


@pytest.mark.parametrize("path", sorted({*ELSEWHERE.values()}))
def test_a_test_that_is_said_to_run_commands_is_there(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("text", of("text"))
def test_what_a_program_prints_is_neither_code_nor_a_command(text: str) -> None:
    programs = {command.split()[0] for command in lines()} - {"."}
    assert [line for line in text.splitlines() if line.split()[:1] and line.split()[0] in programs] == []
    with pytest.raises(SyntaxError):
        compile(text, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("text", of("python"))
def test_python_can_be_compiled(text: str) -> None:
    compile(text, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("command", lines())
def test_a_command_is_known_with_its_options(command: str) -> None:
    match shlex.split(command):
        case ["relay", *arguments]:
            found = CliRunner().invoke(APP, [*(word for word in arguments if word != "…"), "--help"])
            assert found.exit_code == 0, found.output
        case ["dramatiq", *arguments]:
            assert make_argument_parser().parse_args(arguments).broker == "relay.actors"
        case ["pip", "install", *wanted]:
            extras = {it for one in wanted for it in re.findall(r"(?:jetrelay|\.)\[(.+)\]", one)}
            assert {it for one in extras for it in one.split(",")} <= PROJECT["optional-dependencies"].keys()
        case ["docker", "compose", *words]:
            asked = [it for flag, it in pairwise(words) if flag in ("--profile", "--scale", "-f", "exec")]
            assert {it.partition("=")[0] for it in asked} <= COMPOSE["services"].keys() | {"boards"}
        case ["make", target, *_]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", [command for command in lines() if command.startswith("export ")])
def test_what_is_exported_are_settings(command: str, tmp_path: Path) -> None:
    given = dict(word.split("=", 1) for word in shlex.split(command)[1:])
    for name, value in given.items():
        kind = "redis" if "REDIS" in name else "postgresql"
        if name.endswith("_FILE"):
            given[name] = str(tmp_path / "secret")
            (tmp_path / "secret").write_text(f"{kind}://db/1")
        given[name] = given[name].replace("/etc/relay", str(tmp_path))
        for certificate in re.findall(rf"{tmp_path}/(\w+\.\w+)", value.replace("/etc/relay", str(tmp_path))):
            (tmp_path / certificate).touch()
    if "RELAY_CONFIG" in given:
        assert (ROOT / given["RELAY_CONFIG"]).is_file()
    (tmp_path / "relay.toml").write_text("[contexts.sea]\n")
    if "RELAY_CONFIG" in given:
        assert (ROOT / given["RELAY_CONFIG"]).is_file()
    load_settings(
        tmp_path / "relay.toml",
        given if "DATABASE_URL_FILE" in given else {"DATABASE_URL": "postgresql://db/{context}", **given},
    )


@pytest.mark.parametrize("text", of("toml"))
def test_a_configuration_holds_when_it_is_made_whole(text: str, tmp_path: Path) -> None:
    environment = whole(tomllib.loads(text))
    secrets = sorted(set(re.findall(r'_file = "([^"]+)"', text)))
    for number, name in enumerate(secrets):
        fitting = {"webhook": "https://hooks.example", "master": b64encode(bytes(32)).decode()}
        secret = next((it for word, it in fitting.items() if word in name), f"0123456789abcdef{number}")
        (tmp_path / str(number)).write_text(secret)
        text = text.replace(f'"{name}"', f'"{tmp_path / str(number)}"')
    (tmp_path / "relay.toml").write_text(text)
    load_settings(tmp_path / "relay.toml", environment)


def whole(block: dict[str, Any]) -> dict[str, str]:
    """What a part of a configuration lacks, as variables: databases, streams, handlers."""
    found = {"DATABASE_URL": "postgresql://db/{context}"}
    for name, context in block.get("contexts", {}).items():
        here = f"RELAY_CONTEXTS__{name.upper()}"
        if any(it.get("no_ack") for it in context.get("streams", {}).values()):
            found[f"{here}__STREAMS__EVENTS__SUBJECTS"] = f"{name}.event.>"
        for subscription, table in context.get("subscriptions", {}).items():
            lacking = {"stream": "UP", "filter_subject": "up.event.>", "handler": "http://h/handle"}
            for key in lacking.keys() - table.keys():
                found[f"{here}__SUBSCRIPTIONS__{subscription.upper()}__{key.upper()}"] = lacking[key]
    if "contexts" not in block:
        found["RELAY_CONTEXTS__SEA__DATABASE_URL"] = "postgresql://db/sea"
    return found
