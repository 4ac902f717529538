"""Every key has a meaning in the reference. Whether the page is new is for test_reference_pages.py."""

from __future__ import annotations

import re
from pathlib import Path

from docsite import settings
from relay.domain.errors import ConfigurationError
from relay.settings import load_settings

ROOT = Path(__file__).parents[2]
#: A stream, the code of an error, and variables with a slip, in pages; those that end with KEY stand for others.
NO_VARIABLES = {"RELAY_ADVISORIES", "RELAY_ERROR", "RELAY_LOG_LEVLE", "RELAY_CONTEXTS__SEE"}


def test_each_key_has_a_meaning_and_no_other() -> None:
    there = {path: {"", *settings.keys(model)} for path, model in settings.sections()}
    expected = {path: keys for path, keys in there.items() if path not in settings.LIKE_STREAM}
    assert {path: {*meanings} for path, meanings in settings.MEANINGS.items()} == expected
    assert all(text.endswith(".") for meanings in settings.MEANINGS.values() for text in meanings.values())


def named_variables() -> set[str]:
    """The variables that pages and deployments name."""
    files = [
        ROOT / "Makefile",
        ROOT / "docker-compose.yml",
        *(ROOT / "deploy").rglob("*"),
        *(ROOT / "docs").rglob("*.md"),
    ]
    text = "\n".join(it.read_text() for it in files if it.is_file())
    found = re.findall(r"\bRELAY_[A-Z_0-9]*[A-Z]\b", text)
    return {it for it in found if not it.endswith("_KEY")} - NO_VARIABLES


def test_each_variable_that_a_page_or_a_deployment_names_may_be_set(tmp_path: Path) -> None:
    named, file = named_variables(), tmp_path / "relay.toml"
    contexts = {it.split("__")[1].lower() for it in named if it.startswith("RELAY_CONTEXTS__")} | {"sea"}
    file.write_text("".join(f'[contexts.{it}]\ndatabase_url = "postgresql://x/{it}"\n' for it in sorted(contexts)))
    refused = []
    for variable in sorted(named):
        try:
            load_settings(file, {variable: "x"})
        except ConfigurationError as error:
            refused += [variable] if "unknown key" in str(error) else []
    assert {"RELAY_PASSWORD", "RELAY_OWNER_PASSWORD"} <= named
    assert not refused
