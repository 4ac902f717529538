"""docs/reference/settings.md has every key, with the default that holds."""

from __future__ import annotations

from pathlib import Path

from tests.unit import settings_page


def test_the_page_is_as_the_model_says(tmp_path: Path) -> None:
    said = "run: python -m tests.unit.settings_page --accept"
    assert settings_page.PAGE.read_text() == settings_page.page(tmp_path), said


def test_each_key_has_a_meaning_and_no_other() -> None:
    there = {path: {"", *settings_page.keys(model)} for path, model in settings_page.sections()}
    expected = {path: keys for path, keys in there.items() if path not in settings_page.LIKE_STREAM}
    assert {path: {*meanings} for path, meanings in settings_page.MEANINGS.items()} == expected
    assert all(text.endswith(".") for meanings in settings_page.MEANINGS.values() for text in meanings.values())
