"""Every key has a meaning in the reference. Whether the page is new is for test_reference_pages.py."""

from __future__ import annotations

from docsite import settings


def test_each_key_has_a_meaning_and_no_other() -> None:
    there = {path: {"", *settings.keys(model)} for path, model in settings.sections()}
    expected = {path: keys for path, keys in there.items() if path not in settings.LIKE_STREAM}
    assert {path: {*meanings} for path, meanings in settings.MEANINGS.items()} == expected
    assert all(text.endswith(".") for meanings in settings.MEANINGS.values() for text in meanings.values())
