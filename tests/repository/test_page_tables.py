"""Tables and blocks of pages that say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.domain.reasons import CODES, FAMILIES
from tests.unit.settings_support import Load, loader

ROOT = Path(__file__).parents[2]


def test_the_page_of_dead_letters_has_every_code() -> None:
    page = ROOT / "docs/how-to/dead-letters.md"
    table = page.read_text().partition("| Code | It means |\n|---|---|\n")[2].partition("\n\n")[0]
    meanings = {**{code.name: code.meaning for code in CODES}, **FAMILIES}
    assert table.splitlines() == [f"| `{name}` | {meaning} |" for name, meaning in meanings.items()]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def test_what_the_page_of_connections_says_is_a_configuration(load: Load, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/connections.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    parts = [re.split(r"^(?=\[)", block, maxsplit=1, flags=re.MULTILINE) for block in blocks]
    text = "\n".join([*(keys for keys, _ in parts), *(tables for _, tables in parts)])
    text = text.replace("/run/secrets", str(tmp_path))
    for name in re.findall(rf"{tmp_path}/(\w+)", text):
        (tmp_path / name).write_text("https://hooks.example/x\n")
    settings = load(text)
    assert settings.nats.inbox_prefix == "_INBOX_relay"
    assert settings.contexts["sea"].alerts.signing_secret is not None
