"""A command that a finding, an error or a page of the reference recommends can be typed as it is written there."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from relay.cli import create_app

ROOT = Path(__file__).parents[2]
APP = create_app()
ROOT_COMMAND = typer.main.get_command(APP)
#: Commands that would start servers or write files.
STARTING = {"dev", "demo", "init", "ops", "fleet", "chaos", "handler"}
#: After the words of a command come those of a sentence.
ENDS = re.compile(r"[;:,()`{}\"\n]|\.(\s|$)| (?:and|or|then) ")


def texts(path: Path) -> Iterator[str]:
    """The texts of a module but its docstrings, with X for what is put into them."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(it) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for it in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(it.value) if isinstance(it, ast.Constant) else "X" for it in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | inner:
            yield node.value


def recommended() -> dict[str, str]:
    """The commands, each with a file that recommends it: hints and remedies, the tables of findings and errors."""
    found: dict[str, str] = {}
    modules = [
        path for name in ("relay", "consumer", "tasks", "scheduler") for path in (ROOT / name).rglob("*.py")
    ]
    pages = [ROOT / "docs/reference" / name for name in ("findings.md", "errors.md")]
    for path in (*modules, *pages):
        for text in texts(path) if path.suffix == ".py" else [path.read_text()]:
            for place in re.finditer(r"(?<![\w/.-])relay (?=[a-z])", text):
                words = ENDS.split(text[place.end() :], maxsplit=1)[0].strip()
                if words.split()[0] in getattr(ROOT_COMMAND, "commands", {}):
                    found.setdefault(words, str(path.relative_to(ROOT)))
    return found


COMMANDS = recommended()


def leaf(words: list[str]) -> int:
    """How many words name a command. Raises AssertionError for a word that is no command of its group."""
    command: Any = ROOT_COMMAND
    for count, word in enumerate(words):
        if not hasattr(command, "commands"):
            return count
        if word == "X":  # a word that the program puts there
            return count
        assert word in command.commands, f"no command {word}"
        command = command.commands[word]
    return len(words)


def test_there_are_some() -> None:
    assert len(COMMANDS) > 30
    assert any(words.startswith("db grant --relay") for words in COMMANDS)


@pytest.mark.parametrize("text", sorted(COMMANDS), ids=lambda text: text[:60])
def test_it_can_be_typed(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails for want of a configuration, not of arguments. A sentence may go on behind it."""
    monkeypatch.chdir(tmp_path)
    words = shlex.split(text.replace("…", "").replace("'", ""))
    least = leaf(words)
    if words[0] in STARTING or words[least : least + 1] == ["X"]:
        return
    typed = (CliRunner().invoke(APP, words[:count]) for count in range(least, len(words) + 1))
    assert any(it.exit_code != 2 for it in typed), f"{COMMANDS[text]} recommends: relay {text}"
