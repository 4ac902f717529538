"""Alerts that can never come are refused, with the line to mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.settings_support import BASE, Load, loader, refused

AT = "contexts.sea.alerts"
HOOK = 'webhook = "https://hooks.corp/x"'
PARKED = BASE.replace("handler =", 'order = "key"\nfailed_head = "park"\nhandler =')


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def with_alerts(*lines: str, context: str = "sea", text: str = BASE) -> str:
    return "\n".join([text, f"[contexts.{context}.alerts]", *lines])


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        (["per_minute = 3"], "per_minute"),
        (['classes = ["dead_letter"]'], "classes"),
        (['subscriptions = ["from_vibespro"]'], "subscriptions"),
        (['signing_secret = "x"'], "signing_secret"),
        ([HOOK, 'classes = ["dead_leters"]'], "classes"),
        ([HOOK, 'classes = ["parked_key"]'], "classes"),
        ([HOOK, 'subscriptions = ["from_vibes"]'], "subscriptions"),
        ([HOOK, 'classes = ["failed_task"]', 'subscriptions = ["from_vibespro"]'], "classes"),
        (
            [HOOK, 'classes = ["dead_letter", "failed_task"]', 'subscriptions = ["from_vibespro"]'],
            "classes",
        ),
        ([HOOK, 'repeat = "10s"'], "repeat"),
        ([HOOK, 'check_every = "2h"'], "repeat"),
        (['webhook = "ftp://hooks.corp/x"'], "webhook"),
        (['webhook = "https:///x"'], "webhook"),
        (['webhook = "https://hooks.corp:0/x"'], "webhook"),
        (['webhook = "https://hooks.corp:70000/x"'], "webhook"),
        (['webhook = "https://hooks..corp/x"'], "webhook"),
        (['webhook = "https://*.corp/x"'], "webhook"),
        (['webhook = "https://hooks corp/x"'], "webhook"),
        (['webhook = "https://hooks.invalid/x"'], "webhook"),
        (['webhook = "https://hooks.corp/x#y"'], "webhook"),
    ],
)
def test_an_alert_that_can_never_come_is_refused(load: Load, lines: list[str], field: str) -> None:
    error = refused(load, with_alerts(*lines))
    assert (error.field or "").startswith(f"{AT}.{field}")
    numbered = enumerate(with_alerts(*lines).splitlines(), 1)
    written = [number for number, line in numbered if line.startswith((field, "check_every"))]
    assert f"relay.toml:{written[0]}: " in str(error) or field == "repeat"
    assert "hooks" not in str(error)  # the address may be a secret


def test_a_context_without_subscriptions_has_no_dead_letters(load: Load) -> None:
    error = refused(load, with_alerts(HOOK, 'classes = ["dead_letter"]', context="vibespro"))
    assert error.field == "contexts.vibespro.alerts.classes"


def test_the_correction_of_a_task_may_fail_in_a_context_without_subscriptions(load: Load) -> None:
    found = load(with_alerts(HOOK, 'classes = ["failed_correction"]', context="vibespro"))
    assert found.contexts["vibespro"].alerts.classes == ("failed_correction",)


def test_what_can_come_is_accepted(load: Load) -> None:
    lines = [HOOK, 'classes = ["parked_key", "condition"]', 'subscriptions = ["from_vibespro"]', 'repeat = "15s"']
    found = load(with_alerts(*lines, text=PARKED)).contexts["sea"].alerts
    assert (found.classes, found.subscriptions) == (("parked_key", "condition"), ("from_vibespro",))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]:8080", "hooks_1.corp", "localhost:9", "x.example"])
def test_any_address_that_may_exist_is_accepted(load: Load, host: str) -> None:
    assert load(with_alerts(f'webhook = "http://{host}/x?key=s3cret"')).contexts["sea"].alerts.webhook is not None
