"""An outbox of a context that nobody has declared is refused, where it can be known what is declared."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay import Outbox
from relay.domain.errors import UnknownContext
from relay.settings import declared_contexts

FILE = '[contexts.sea]\ndatabase_url = "${NO}"\n[contexts.city-one]\nnonsense = 1\n'


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("relay.outbox.declared_contexts", declared_contexts)
    return tmp_path


def test_a_typo_is_refused_with_the_names_that_are_there(directory: Path) -> None:
    (directory / "relay.toml").write_text(FILE)
    assert [Outbox(name).context for name in ("sea", "city-one")] == ["sea", "city-one"]
    with pytest.raises(UnknownContext) as caught:
        Outbox("see")
    assert str(caught.value) == (
        "UNKNOWN_CONTEXT [context]: relay.toml declares no context 'see' "
        "(it declares city-one, sea; undeclared=True allows those of another configuration)"
    )
    assert Outbox("see", undeclared=True).context == "see"


def test_the_file_of_the_variable_counts_and_a_change_of_it_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "relay.toml").write_text(FILE)
    other = directory / "other.toml"
    other.write_text("[contexts.shop]\n")
    monkeypatch.setenv("RELAY_CONFIG", str(other))
    Outbox("shop")
    with pytest.raises(UnknownContext, match=r"other\.toml"):
        Outbox("sea")
    other.write_text("[contexts.shop]\n[contexts.sea]\n")
    Outbox("sea")


@pytest.mark.parametrize("text", [None, "no TOML", "contexts = 7\n", '[logging]\nlevel = "info"\n'])
def test_without_declarations_any_name_is_taken(directory: Path, text: str | None) -> None:
    if text is not None:
        (directory / "relay.toml").write_text(text)
    assert Outbox("any").context == "any"


def test_variables_declare_contexts_too(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "relay.toml").write_text('[logging]\nlevel = "info"\n')
    monkeypatch.setenv("RELAY_CONTEXTS__SEA__DATABASE_URL", "postgresql://")
    Outbox("sea")
    with pytest.raises(UnknownContext):
        Outbox("see")


def test_a_file_that_is_not_there_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_CONFIG", "/nowhere/relay.toml")
    assert Outbox("any").context == "any"
