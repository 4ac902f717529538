"""The page about several subscribers: its configuration is taken, and each function has its subscription."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from consumer.functions import check_subscriptions
from consumer.handlers import load
from tests.pages import code
from tests.unit.settings_support import loader


def test_each_subscription_of_the_page_calls_its_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = '[contexts.shop]\ndatabase_url = "postgresql://db/shop"\n'
    settings = loader(tmp_path, monkeypatch)(database + code("docs/how-to/subscribers.md", "toml", 1))
    subscriptions = settings.contexts["shop"].subscriptions
    module = ModuleType("shop.handlers")
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.handlers", module)
    exec(code("docs/how-to/subscribers.md", "python", 1), module.__dict__)
    registries = {name: load(it.python_module or "") for name, it in subscriptions.items()}
    check_subscriptions([*registries.items()])
    called = {
        (name, kind): handler.function.__name__
        for name, registry in registries.items()
        for (kind, _), handler in registry.of(name).handlers.items()
    }
    assert called == {
        ("stock", "order_placed"): "reserve",
        ("audit", "order_placed"): "write_down",
        ("stock", "order_cancelled"): "forget",
        ("audit", "order_cancelled"): "forget",
    }
