"""Configuration that is refused: the reason, the key, and the line or variable to mend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.domain.errors import ConfigurationError
from tests.unit.settings_support import BASE, SUB, SUB_ENV, Load, loader, refusal


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ("[contexts.sea]", "nats_urll = 1\n[contexts.sea]"),
            r"toml:1: nats_urll: .*did you mean nats_url\?",
        ),
        (("[contexts.sea]", "[extra]\nx = 1\n[contexts.sea]"), r"relay.toml:1: extra: "),
        (("handler =", "handler_url ="), rf"relay.toml:6: {SUB}.handler_url: .*did you mean handler\?"),
        (("[contexts.vibespro]", "[contexts.vibespro]\nname = 1"), r"toml:8: contexts.vibespro.name: "),
        (("handler =", "context = 'x'\nhandler ="), rf"relay.toml:6: {SUB}.context: "),
        (('stream = "VIBESPRO_EVENTS"\n', ""), rf"relay.toml:3: {SUB}.stream: "),
        (
            ('database_url = "postgresql://db/vibespro"\n', ""),
            r"toml:7: contexts.vibespro.database_url: .*DATABASE_URL",
        ),
        (("[contexts.sea]", "[contexts.Sea]"), r"toml:1: contexts.Sea: "),
        (
            ('[contexts.sea]\ndatabase_url = "postgresql://sea:s3cret@db/sea"\n', ""),
            r"toml:1: contexts.sea.database_url: ",
        ),
        (("from_vibespro", '"from.vibespro"'), r"toml:3: contexts.sea.subscriptions.from.vibespro: "),
        (('"postgresql://db/vibespro"', "5"), r"toml:8: contexts.vibespro.database_url: "),
        (("[contexts.vibespro]\n", "[contexts]\nvibespro = 1\n#"), r"contexts.vibespro: "),
    ],
)
def test_keys_and_tables(load: Load, change: tuple[str, str], expected: str) -> None:
    text = BASE.replace(*change)
    if "[contexts]" in text:
        text = text.partition("#")[0]
    assert re.search(expected, refusal(load, text), re.DOTALL)


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("contexts.sea.publish", "shards = 65"),
        ("contexts.sea.publish", "batch_size = 0"),
        ("contexts.sea.publish", 'dead_head = "stop"'),
        ("contexts.sea.publish", 'ack_timeout = "5s"'),
        ("contexts.sea.publish", 'poll_interval = "0s"'),
        ("contexts.sea.publish", 'poll_interval = "soon"'),
        ("contexts.sea.publish", "poll_interval = true"),
        ("contexts.sea.publish", 'backoff_initial = "2m"'),
        ("contexts.sea.stream", 'max_bytes = "10 giga"'),
        ("contexts.sea.stream", "max_bytes = 0"),
        ("contexts.sea.stream", "replicas = 6"),
        ("contexts.sea.stream", 'duplicate_window = "8d"'),
        ("contexts.sea.stream", 'max_age = "1m"'),
        ("contexts.sea.stream", f"max_msgs_per_subject = {2**63 - 1}0"),
        ("contexts.sea.stream", 'duplicate_window = "99ms"'),
        ("contexts.sea.stream", "subjects = []"),
        ("contexts.sea.stream", 'subjects = ["sea event"]'),
        ("contexts.sea.stream", 'name = "SEA.EVENTS"'),
        ("contexts.sea.stream", 'name = "RELAY_ADVISORIES"'),
        ("contexts.sea.stream", 'subjects = ["sea.other.>"]'),
        ("contexts.sea.stream", 'subjects = ["sea.event.*"]'),
        ("contexts.sea.stream", 'subjects = ["sea.event.*.x1"]'),
        ("contexts.sea.dlq", 'subjects = ["sea.dead.>"]'),
        ("contexts.sea.dlq", 'subjects = ["sea.dlq.other.>"]'),
    ],
)
def test_values_of_contexts(load: Load, table: str, line: str) -> None:
    key = line.partition(" ")[0]
    assert f"relay.toml:10: {table}.{key}" in refusal(load, f"{BASE}[{table}]\n{line}\n")


@pytest.mark.parametrize(
    "lines",
    [
        "concurrency = 0",
        'rate = "soon"',
        'rate = "0/1m"',
        'rate = "10/0s"',
        "rate_per_key = true",
        'rate_per_key = true\nrate = "1/2d"',
    ],
)
def test_limits_of_a_subscription(load: Load, lines: str) -> None:
    key = lines.partition(" ")[0]
    assert f"relay.toml:6: {SUB}.{key}: " in refusal(load, BASE.replace("handler =", f"{lines}\nhandler =", 1))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('name = "VIBESPRO_EVENTS"', "relay.toml:7: contexts.vibespro.stream.name: "),
        ('subjects = ["sea.>"]', "relay.toml:1: contexts.sea.dlq.subjects: "),
    ],
)
def test_a_value_that_contradicts_another_stream(load: Load, line: str, expected: str) -> None:
    message = refusal(load, f"{BASE}[contexts.sea.stream]\n{line}\n")
    assert expected in message
    assert "SEA_EVENTS" in message or "contexts.sea.stream" in message


@pytest.mark.parametrize(
    "template",
    [
        "{context}.{kind}.{name}.{version}",
        "{context}.event.{name.v{version}",
        "{context}..{name}.v{version}",
        "{context}.event.{name}.>{version}",
        "{context}.event.{name!r}.v{version}",
    ],
)
def test_templates(load: Load, template: str) -> None:
    assert "relay.toml:9: contexts.vibespro.subject: " in refusal(load, f'{BASE}subject = "{template}"\n')


@pytest.mark.parametrize("template", ["{context}.event.{name}", "vibespro.event.all"])
def test_a_template_needs_neither_name_nor_version(load: Load, template: str) -> None:
    assert load(f'{BASE}subject = "{template}"\n').contexts["vibespro"].subject == template


def test_a_template_of_ones_own(load: Load) -> None:
    text = f'{BASE}subject = "{{context}}.events.{{name}}-{{version}}"\n'
    text += 'stream.subjects = ["vibespro.events.loop-1"]\n'
    with_filter = text.replace("vibespro.event.>", "vibespro.events.>")
    assert load(with_filter).contexts["vibespro"].stream.subjects == ("vibespro.events.loop-1",)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('settle = "later"', f"relay.toml:6: {SUB}.settle: "),
        ('unknown = "skip"', f"relay.toml:6: {SUB}.unknown: "),
        ('handler_timeout = "120s"', f"relay.toml:6: {SUB}.handler_timeout: "),
        ('backoff_max = "0.5s"', f"relay.toml:3: {SUB}.backoff_initial: "),
        ("max_deliver = 0", f"relay.toml:6: {SUB}.max_deliver: "),
        ('on_failure = "ack"', f"relay.toml:6: {SUB}.on_failure: "),
        ('on_failure = "nak"\nsettle = "inbox"', f"relay.toml:6: {SUB}.on_failure: "),
        ('on_failure = "nak"\nmax_attempts = 21', f"relay.toml:3: {SUB}.max_deliver: "),
        ('signing_secret = ""', f"relay.toml:6: {SUB}.signing_secret: "),
    ],
)
def test_values_of_subscriptions(load: Load, line: str, expected: str) -> None:
    assert expected in refusal(load, BASE.replace("handler =", f"{line}\nhandler ="))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("RELAY_NATS_URL", "http://nats", "nats_url"),
        ("NATS_URL", "localhost:4222", "nats_url"),
        ("REDIS_URL", "postgresql://h", "redis_url"),
        ("REDIS_URL", "redis://h:port", "redis_url"),
        ("RELAY_CONTEXTS__SEA__DATABASE_URL", "mysql://db/sea", "contexts.sea.database_url"),
        (f"{SUB_ENV}__HANDLER", "ftp://handler/handle", f"{SUB}.handler"),
        (f"{SUB_ENV}__HANDLER", "http:///handle", f"{SUB}.handler"),
        (f"{SUB_ENV}__HANDLER", "python:1st", f"{SUB}.handler"),
        (f"{SUB_ENV}__HANDLER", "python:my-app", f"{SUB}.handler"),
        (f"{SUB_ENV}__HANDLER", "python:myapp.import", f"{SUB}.handler"),
        (f"{SUB_ENV}__HANDLER", "python://myapp", f"{SUB}.handler"),
        (f"{SUB_ENV}__HANDLER", "http://me:pw@host/handle", f"{SUB}.handler"),
        ("RELAY_NATS_URLL", "x", "nats_urll"),
        ("RELAY_CONTEXTS__SEE__DATABASE_URL", "postgresql://db/see", "contexts.see.database_url"),
        ("RELAY_CONTEXTS__SEA__PUBLISH", "x", "contexts.sea.publish"),
        ("RELAY_NATS_URL__X", "x", "nats_url.x"),
        ("RELAY_ACTOR_MODULES", "[oops", "actor_modules"),
        ("NATS_MESSAGE_TTL_SECS", "-5", "contexts.sea.stream.max_age"),
        (
            "RELAY_CONTEXTS__VIBESPRO__DATABASE_URL",
            "postgresql://sea:s3cret@db/sea",
            "contexts.vibespro.database_url",
        ),
    ],
)
def test_variables(load: Load, key: str, value: str, expected: str) -> None:
    text = f'nats_url = "nats://h"\n{BASE}' if key == "RELAY_NATS_URL__X" else BASE
    message = refusal(load, text, **{key: value})
    assert f"env {key}" in message
    assert f"{expected}: " in message
    assert value not in message or value in ("x", "-5")


def second(name: str, *lines: str) -> str:
    head = f'[contexts.sea.subscriptions.{name}]\nhandler = "https://h/handle"\n'
    return BASE.replace("[contexts.vibespro]", head + "\n".join(lines) + "\n[contexts.vibespro]")


def test_filters_of_one_context_may_overlap_and_the_first_one_has_the_ids(load: Load) -> None:
    settings = load(second("audit", 'stream = "VIBESPRO_EVENTS"', 'filter_subject = "vibespro.event.*.v1"'))
    names = settings.contexts["sea"].subscriptions
    assert [settings.comes_later("sea", name) for name in names] == [False, True]
    apart = load(second("other", 'stream = "OTHER"', 'filter_subject = "vibespro.event.x.*"'))
    assert not apart.comes_later("sea", "other")


@pytest.mark.parametrize(("handler", "later"), [("https://h/handle", True), ("https://h/2", False)])
def test_of_two_contexts_with_one_service_the_first_one_has_the_ids(load: Load, handler: str, later: bool) -> None:
    again = BASE[BASE.index("[contexts.sea.sub") : BASE.index("[contexts.vibespro]")].replace("sea", "vibespro")
    text = re.sub('handler = ".*"', 'handler = "https://h/handle"', BASE) + re.sub(
        'handler = ".*"', f'handler = "{handler}"', again
    )
    settings = load(text)
    assert not settings.comes_later("sea", "from_vibespro")
    assert settings.comes_later("vibespro", "from_vibespro") is later


def test_two_subscriptions_with_one_durable(load: Load) -> None:
    text = second(
        "audit",
        'stream = "VIBESPRO_EVENTS"',
        'filter_subject = "vibespro.event.>"',
        'durable = "sea__from_vibespro"',
    )
    assert re.search(r"relay.toml:\d+: contexts.sea.subscriptions.audit.durable: ", refusal(load, text))


def test_two_subscriptions_of_one_context_that_take_the_same_commands(load: Load) -> None:
    text = second("more", 'stream = "VIBESPRO_EVENTS"', 'filter_subject = "vibespro.commands.>"')
    text = text.replace('"vibespro.event.>"', '"vibespro.>"')
    assert re.search(r"contexts.sea.subscriptions.more.filter_subject: takes commands", refusal(load, text))


def test_filters_of_different_contexts_may_overlap(load: Load) -> None:
    text = BASE + BASE[BASE.index("[contexts.sea.sub") : BASE.index("[contexts.vibespro]")].replace(
        "sea", "vibespro"
    )
    assert len(load(text).consumers()) == 6


def test_a_filter_outside_its_stream(load: Load) -> None:
    message = refusal(load, BASE.replace("vibespro.event.>", "vibespro.events.>"))
    assert re.search(rf"relay.toml:5: {SUB}.filter_subject: .*VIBESPRO_EVENTS", message)


def test_a_stream_of_others_is_not_judged(load: Load) -> None:
    assert load(BASE.replace("VIBESPRO_EVENTS", "THEIRS").replace("vibespro.event.>", "theirs.>"))


def test_durables_that_clash(load: Load) -> None:
    sub = BASE[BASE.index("[contexts.sea.sub") : BASE.index("[contexts.vibespro]")].replace("sea", "vibespro")
    message = refusal(load, f'{BASE}{sub}durable = "sea__from_vibespro"\n')
    assert "relay.toml:13: contexts.vibespro.subscriptions.from_vibespro.durable: " in message
    assert SUB in message


def test_the_same_durable_on_another_stream_is_another_consumer(load: Load) -> None:
    text = second("all", 'stream = "OTHER"', 'filter_subject = "o.>"', 'durable = "sea__from_vibespro"')
    assert len(load(text).consumers("sea")) == 5


def test_two_contexts_may_share_a_stream_declared_alike(load: Load) -> None:
    shared = 'name = "DEAD"\nsubjects = ["*.dlq.>"]\n'
    settings = load(f"{BASE}[contexts.sea.dlq]\n{shared}[contexts.vibespro.dlq]\n{shared}")
    assert [spec.name for spec in settings.streams()] == [
        "SEA_EVENTS",
        "DEAD",
        "VIBESPRO_EVENTS",
        "RELAY_ADVISORIES",
    ]


def test_all_problems_in_one_report(load: Load) -> None:
    text = BASE.replace("handler =", 'ack_wiat = "1s"\nhandler_timeout = "300s"\nhandler =') + 'subject = "x"\n'
    message = refusal(load, text)
    assert "3 problems" in message
    assert f"{SUB}.ack_wiat: unknown key (did you mean ack_wait" in message
    assert "relay.toml:7: " in message
    assert "contexts.vibespro.stream.subjects: no event reaches this stream" in message


def test_one_problem_names_its_field_and_hint(load: Load) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(BASE.replace("handler =", "handlr ="))
    assert "problems" in caught.value.message
    with pytest.raises(ConfigurationError) as caught:
        load(f"{BASE}subjct = 1\n")
    assert caught.value.field == "contexts.vibespro.subjct"
    assert caught.value.hint == "did you mean subject?"


def test_files_that_cannot_be_read(load: Load, tmp_path: Path) -> None:
    assert "relay.toml:2: not valid TOML" in refusal(load, "[a]\nx = \n")
    assert "cannot read nope.toml: No such file" in refusal(load, None, RELAY_CONFIG="nope.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    assert "not UTF-8" in refusal(load, None, RELAY_CONFIG="bad.toml")
    assert "no context is declared" in refusal(load, "")


def test_a_policy_for_failed_heads_needs_an_order(load: Load) -> None:
    for line in ('failed_head = "park"', 'order = "none"\nfailed_head = "block"'):
        text = refusal(load, BASE.replace("handler =", f"{line}\nhandler ="))
        assert f"{SUB}.failed_head: " in text


@pytest.mark.parametrize("size", [0, 501])
def test_a_chunk_has_between_one_and_five_hundred_messages(load: Load, size: int) -> None:
    assert f"{SUB}.chunk: should be" in refusal(load, BASE.replace("handler =", f"chunk = {size}\nhandler ="))
    settings = load(BASE.replace("handler =", "chunk = 500\nhandler ="))
    assert settings.contexts["sea"].subscriptions["from_vibespro"].chunk == 500


def test_an_order_is_by_key_or_none(load: Load) -> None:
    assert f"{SUB}.order: " in refusal(load, BASE.replace("handler =", 'order = "subject"\nhandler ='))
    settings = load(BASE.replace("handler =", 'order = "key"\nhandler ='))
    assert settings.contexts["sea"].subscriptions["from_vibespro"].failed_head == "block"


def test_workers_that_cannot_add_up_are_refused(load: Load) -> None:
    message = refusal(load, f"[metrics]\nworker = 9465\n{BASE}")
    assert "relay.toml:1: metrics.directory: " in message
    assert load(f"[metrics]\nworker = 9465\ndirectory = 'm'\n{BASE}").metrics.directory == Path("m")


def test_metrics_can_be_configured_by_variables(load: Load) -> None:
    """Kubernetes sets variables that look like ours and end in _PORT; none of these does."""
    found = load(RELAY_METRICS__SCHEDULER="9464", RELAY_METRICS__INTERVAL="5s").metrics
    assert (found.scheduler, found.worker, found.interval.total_seconds()) == ("127.0.0.1:9464", None, 5)
