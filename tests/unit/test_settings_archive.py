"""The section `archive`: off by default, and refused where a row would not outlive its message."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.settings_support import BASE, Load, loader, refusal, source

ARCHIVE = '[contexts.sea.archive]\nafter = "90d"\ndirectory = "/var/lib/relay/archive"\n'


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def test_it_is_off_by_default(load: Load) -> None:
    archive = load().contexts["sea"].archive
    assert (archive.after, archive.directory) == (None, None)


def test_it_is_on_with_both_values(load: Load) -> None:
    settings = load(BASE + ARCHIVE)
    archive = settings.contexts["sea"].archive
    assert (archive.after, archive.directory) == (timedelta(days=90), Path("/var/lib/relay/archive"))
    assert source(settings, "contexts.sea.archive.after") == ("90d", "relay.toml:10")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('after = "90d"', r"relay.toml:9: contexts.sea.archive.directory: is required"),
        ('directory = "/a"', r'contexts.sea.archive.after: is required \(for example after = "90d"'),
        ('after = "90d"\ndirectory = "a"', r"relay.toml:11: contexts.sea.archive.directory: must begin with /"),
        ('after = "7d"\ndirectory = "/a"', r"archive.after: must be longer than the max_age of SEA_EVENTS"),
        ('after = "soon"', "'soon' is not a duration"),
        ('age = "90d"', "unknown key"),
    ],
)
def test_refusals(load: Load, lines: str, expected: str) -> None:
    assert re.search(expected, refusal(load, f"{BASE}[contexts.sea.archive]\n{lines}\n"))


@pytest.mark.parametrize(
    ("age", "keeps"), [("90d", "for 90d"), ("100d", "for 100d"), ("unlimited", "for ever"), ("0", "for ever")]
)
@pytest.mark.parametrize("context", ["sea", "vibespro"])
def test_rows_must_outlive_the_messages_of_every_declared_stream(
    load: Load, context: str, age: str, keeps: str
) -> None:
    """Its own stream, and those it reads."""
    text = f'{BASE}{ARCHIVE}[contexts.{context}.stream]\nmax_age = "{age}"\n'
    stream = f"{context.upper()}_EVENTS"
    expected = rf"relay.toml:10: contexts.sea.archive.after: .* max_age of {stream}, which keeps messages {keeps}"
    assert re.search(expected, refusal(load, text))


def test_a_day_longer_is_enough(load: Load) -> None:
    load(f'{BASE}{ARCHIVE}[contexts.vibespro.stream]\nmax_age = "89d"\n')


def test_the_stream_of_a_context_that_sea_does_not_read_is_not_asked(load: Load) -> None:
    text = BASE.replace("VIBESPRO_EVENTS", "OTHER").replace("vibespro.event", "other.event")
    load(f'{text}{ARCHIVE}[contexts.vibespro.stream]\nmax_age = "unlimited"\n')
