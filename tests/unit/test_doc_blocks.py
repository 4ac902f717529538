"""The blocks of all pages: configurations load, commands are known with their options, Python is Python.

What a block does is shown elsewhere: the tutorial by tests/acceptance/test_first_steps.py, the README by
test_readme.py, and pages about Python by the tests that name them.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dramatiq.cli import make_argument_parser
from typer.testing import CliRunner

from docsite.reference import FOLDER, PAGES
from relay.cli import create_app
from relay.settings import load_settings

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```([a-z]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Stands above a configuration that goes on from the one before it.
_GOES_ON = "<!-- goes on -->\n"
#: Shown to readers: what is printed, pictures, and files of other programs.
SHOWN = {"text", "http", "mermaid", "promql", "ini", "sql", "js"}
TREATED = {"python", "toml", "sh", "json", "jsonl", "yaml"}
APP = create_app()


def pages() -> list[Path]:
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("README.md")]
    made = {FOLDER / name for name in PAGES}  # these have signatures, and are compared with the code
    return sorted(page for page in found if "node_modules" not in page.parts and page not in made)


def blocks(language: str) -> Iterator[Any]:
    for page in pages():
        read, before = page.read_text(), ""
        for number, block in enumerate(_BLOCK.finditer(read), start=1):
            if block[1] == language:
                before = block[2] if not read[: block.start()].endswith(_GOES_ON) else before + block[2]
                yield pytest.param(before, id=f"{page.relative_to(ROOT)}:{number}")


def commands() -> Iterator[Any]:
    for page in pages():
        for language, text in _BLOCK.findall(page.read_text()):
            for line in text.splitlines() if language == "sh" else ():
                command = re.split(r"\s+#|\s\|\s", line)[0].strip().removeprefix(".venv/bin/")
                if command.startswith(("relay ", "dramatiq ")):
                    yield pytest.param(shlex.split(command), id=f"{page.name}: {command}")


def test_every_language_is_treated_or_only_shown() -> None:
    assert {language for page in pages() for language, _ in _BLOCK.findall(page.read_text())} <= SHOWN | TREATED


@pytest.mark.parametrize("text", [*blocks("python")])
def test_python_can_be_compiled(text: str) -> None:
    compile(text, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("words", [*commands()])
def test_a_command_is_known_with_its_options(words: list[str]) -> None:
    program, *arguments = words
    if program == "dramatiq":
        assert make_argument_parser().parse_args(arguments).broker == "relay.actors"
        return
    found = CliRunner().invoke(APP, [*(word for word in arguments if word != "…"), "--help"])
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("text", [*blocks("json")])
def test_json_can_be_read(text: str) -> None:
    json.loads(text)


@pytest.mark.parametrize("text", [*blocks("jsonl")])
def test_each_line_of_json_can_be_read(text: str) -> None:
    assert [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("text", [*blocks("yaml")])
def test_yaml_can_be_read(text: str) -> None:
    assert list(yaml.safe_load_all(text))


@pytest.mark.parametrize("text", [*blocks("toml")])
def test_a_configuration_holds_when_it_is_made_whole(text: str, tmp_path: Path) -> None:
    environment = whole(tomllib.loads(text))
    secrets = sorted(set(re.findall(r'_file = "([^"]+)"', text)))
    for number, name in enumerate(secrets):
        (tmp_path / str(number)).write_text(
            "https://hooks.example" if "webhook" in name else f"0123456789abcdef{number}"
        )
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
