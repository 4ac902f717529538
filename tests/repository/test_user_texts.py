"""Texts for users name no paragraph of a specification that they have never seen."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Numbers of requirements, and the sections of our papers.
REFERENCE = re.compile(r"\b(POL|EVT|CMD|PORT|QRY|ADR|SDS)-\d{2,}|\bDESIGN §|\bDESIGN\.md|building blocks? ?[§(\d]")
#: What a user imports or subclasses, and every command: their docstrings are help texts.
PUBLIC = (
    *("relay/__init__.py", "relay/outbox.py", "relay/events.py", "relay/schemas", "relay/domain/errors.py"),
    *("relay/domain/facts.py", "relay/domain/model.py", "relay/domain/envelopes", "relay/settings"),
    *(
        "relay/handler",
        "relay/bus",
        "relay/cron",
        "relay/cli",
        "relay/testing",
        "tasks/__init__.py",
        "tasks/registry.py",
    ),
    *("tasks/outbox.py", "consumer/handlers.py"),
)
#: The page that says where each paragraph is implemented, the records of decisions, and what is history.
ABOUT = ("SPECIFICATION.md", "docs/decisions/", "CHANGELOG.md")


def texts(tree: ast.Module) -> list[str]:
    """All texts of a module but its docstrings: messages, hints, help."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return [node.value for node in constants if isinstance(node.value, str)]


def modules(*places: str) -> list[Path]:
    found = [ROOT / place for place in places]
    return [path for place in found for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", ["relay", "consumer", "tasks", "scheduler"])
def test_no_message_hint_or_help_names_a_paragraph(package: str) -> None:
    said = [(named(path), text) for path in modules(package) for text in texts(ast.parse(path.read_text()))]
    assert said
    assert [(path, text) for path, text in said if REFERENCE.search(text)] == []


def test_no_public_docstring_names_a_paragraph() -> None:
    found = modules(*PUBLIC)
    assert len(found) > 50
    assert [named(path) for path in found if REFERENCE.search(path.read_text())] == []


def test_no_page_and_no_example_names_a_paragraph() -> None:
    kinds = {".md", ".toml", ".yaml", ".yml", ".conf", ".sql", ".sh", ".json"}
    places = [
        *(ROOT / "relay").rglob("*.toml"),
        *(ROOT / "docs").rglob("*"),
        *(ROOT / "deploy").rglob("*"),
        *(ROOT / "examples").rglob("*"),
    ]
    pages = [path for path in (*places, *ROOT.glob("*")) if path.suffix in kinds]
    assert len(pages) > 30
    pages = [path for path in pages if not named(path).startswith(ABOUT)]
    assert [named(path) for path in pages if REFERENCE.search(path.read_text())] == []


@pytest.mark.parametrize("text", ["after the answer (POL-047-007)", "as in SDS-047 §10", "itself (DESIGN §7)"])
def test_a_reference_is_seen(text: str) -> None:
    assert REFERENCE.search(text)


def test_no_template_marks_text_as_safe_or_has_scripts_or_styles_of_its_own() -> None:
    for file in (ROOT / "relay/ops/console/templates").iterdir():
        text = file.read_text("utf-8")
        for forbidden in (
            "| safe",
            "|safe",
            "autoescape false",
            " style=",
            " onclick",
            "<style",
            "javascript:",
            "//",
        ):
            assert forbidden not in text.replace("https://", ""), (file.name, forbidden)
