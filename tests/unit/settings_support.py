"""What the tests of the configuration share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from relay.domain.errors import ConfigurationError
from relay.settings import Settings, effective, load_settings

BASE = """\
[contexts.sea]
database_url = "postgresql://sea:s3cret@db/sea"
[contexts.sea.subscriptions.from_vibespro]
stream = "VIBESPRO_EVENTS"
filter_subject = "vibespro.event.>"
handler = "http://127.0.0.1:8000/handle"
[contexts.vibespro]
database_url = "postgresql://db/vibespro"
"""
SUB = "contexts.sea.subscriptions.from_vibespro"
SUB_ENV = "RELAY_CONTEXTS__SEA__SUBSCRIPTIONS__FROM_VIBESPRO"

Load = Callable[..., Settings]


def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a text as ./relay.toml, with nothing in the environment but the variables given."""
    monkeypatch.chdir(tmp_path)

    def _load(text: str | None = BASE, **environ: str) -> Settings:
        if text is not None:
            (tmp_path / "relay.toml").write_text(text)
        return load_settings(environ=environ)

    return _load


def refused(load: Load, text: str | None = BASE, **environ: str) -> ConfigurationError:
    """The error of a configuration; its ``field`` is the key at fault, if there is only one."""
    with pytest.raises(ConfigurationError) as caught:
        load(text, **environ)
    assert caught.value.code == "INVALID_CONFIG"
    return caught.value


def refusal(load: Load, text: str | None = BASE, **environ: str) -> str:
    return str(refused(load, text, **environ))


def source(settings: Settings, key: str) -> tuple[str, str]:
    return next((value, origin) for path, value, origin in effective(settings) if path == key)
