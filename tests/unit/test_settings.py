"""Configuration: what each source gives, what wins, and what is refused with the line to mend."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from relay.domain.errors import UnknownContext
from relay.domain.topology import RELAY_ADVISORIES
from relay.settings import Settings, effective, load_settings
from relay.settings.urls import hide_url
from tests.unit.settings_support import BASE, SUB, SUB_ENV, Load, loader, refused, source

SECOND = timedelta(seconds=1)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


# --- defaults ---


def test_defaults(load: Load) -> None:
    settings = load()
    sea = settings.contexts["sea"]
    assert settings.nats_url.get_secret_value() == "nats://localhost:4222"
    assert settings.redis_url.get_secret_value() == "redis://localhost:6379/0"
    assert (settings.redis_namespace, settings.log_level, settings.log_format) == ("relay", "INFO", "auto")
    assert (sea.name, sea.subject, sea.envelope) == ("sea", "{context}.event.{name}.v{version}", "handler")
    assert (sea.stream.name, sea.stream.subjects) == ("SEA_EVENTS", ("sea.event.>",))
    assert (sea.dlq.name, sea.dlq.subjects, sea.dlq.max_age) == ("SEA_DLQ", ("sea.dlq.>",), timedelta(days=30))
    assert sea.publish.model_dump() == {
        "shards": 2,
        "batch_size": 300,
        "batch_bytes": 4 * 1024**2,
        "poll_interval": SECOND / 10,
        "max_attempts": 10,
        "dead_head": "skip",
        "ack_timeout": 2 * SECOND,
        "backoff_initial": SECOND,
        "backoff_max": 60 * SECOND,
    }


def test_defaults_of_a_subscription(load: Load) -> None:
    subscription = load().contexts["sea"].subscriptions["from_vibespro"]
    assert (subscription.name, subscription.context) == ("from_vibespro", "sea")
    assert subscription.durable == "sea__from_vibespro"
    assert (subscription.settle, subscription.envelope, subscription.signing_secret) == (
        "handler",
        "handler",
        None,
    )
    assert (subscription.max_deliver, subscription.max_ack_pending, subscription.max_attempts) == (20, 50, 20)
    assert subscription.chunk == 1
    assert subscription.ack_wait == 120 * SECOND
    assert (subscription.handler_timeout, subscription.connect_timeout) == (30 * SECOND, 5 * SECOND)
    assert (subscription.backoff_initial, subscription.backoff_max) == (SECOND, 60 * SECOND)


def test_our_own_actor_modules_are_always_loaded() -> None:
    own = ("tasks.actors", "consumer.actors")
    assert Settings().actor_modules == own
    assert Settings(actor_modules=["myapp.tasks"]).actor_modules == (*own, "myapp.tasks")
    placed = Settings(actor_modules=["before.ours", "consumer.actors", "myapp.tasks"])
    assert placed.actor_modules == ("tasks.actors", "before.ours", "consumer.actors", "myapp.tasks")
    assert placed.user_modules == ("before.ours", "myapp.tasks")


# --- sources ---


def test_each_source_and_which_wins(load: Load) -> None:
    text = f'nats_url = "nats://file:1"\n{BASE}[contexts.sea.publish]\nshards = 3\nbatch_size = 7\n'
    settings = load(
        text,
        NATS_URL="nats://alias:1",
        REDIS_URL="redis://alias/1",
        RELAY_REDIS_URL="redis://own/2",
        RELAY_CONTEXTS__SEA__PUBLISH__SHARDS="4",
    )
    assert source(settings, "nats_url") == ("nats://alias:1", "env NATS_URL")
    assert source(settings, "redis_url") == ("redis://own/2", "env RELAY_REDIS_URL")
    assert source(settings, "contexts.sea.publish.shards") == ("4", "env RELAY_CONTEXTS__SEA__PUBLISH__SHARDS")
    assert source(settings, "contexts.sea.publish.batch_size") == ("7", "relay.toml:12")
    assert source(settings, "contexts.sea.publish.max_attempts") == ("10", "default")


def test_the_environment_reaches_every_value(load: Load) -> None:
    settings = load(
        BASE.replace("postgresql://sea:s3cret@db/sea", "postgresql://file/sea"),
        RELAY_CONTEXTS__SEA__DATABASE_URL="postgresql://env/sea",
        RELAY_CONTEXTS__SEA__STREAM__SUBJECTS="sea.event.>, sea.extra",
        RELAY_CONTEXTS__SEA__STREAM__MAX_AGE="1h30m",
        RELAY_ACTOR_MODULES='["one", "two"]',
        RELAY_LOG_LEVEL="debug",
        **{f"{SUB_ENV}__RATE": "120/1m", f"{SUB_ENV}__RATE_PER_KEY": "yes", f"{SUB_ENV}__CONCURRENCY": "5"},
        **{f"{SUB_ENV}__ACK_WAIT": "2m", f"{SUB_ENV}__SIGNING_SECRET": "whsec"},
    )
    sea = settings.contexts["sea"]
    assert sea.database_url.get_secret_value() == "postgresql://env/sea"
    assert sea.stream.subjects == ("sea.event.>", "sea.extra")
    assert sea.stream.max_age == timedelta(minutes=90)
    assert sea.subscriptions["from_vibespro"].ack_wait == timedelta(minutes=2)
    assert str(sea.subscriptions["from_vibespro"].limit) == "5 at once, 2/1s per key"
    assert sea.subscriptions["from_vibespro"].signing_secret == SecretStr("whsec")
    assert (settings.user_modules, settings.log_level) == (("one", "two"), "DEBUG")


def test_a_variable_reaches_names_with_a_hyphen(load: Load) -> None:
    text = '[contexts.my-app]\ndatabase_url = "postgresql://file/x"\n'
    settings = load(text, RELAY_CONTEXTS__MY_APP__DATABASE_URL="postgresql://env/x")
    assert list(settings.contexts) == ["my-app"]
    assert settings.contexts["my-app"].database_url.get_secret_value() == "postgresql://env/x"


def test_without_a_file_the_environment_declares_contexts(load: Load) -> None:
    settings = load(None, RELAY_CONTEXTS__SEA__DATABASE_URL="postgresql://env/sea")
    assert settings.contexts["sea"].stream.name == "SEA_EVENTS"


def test_the_common_database_serves_contexts_without_their_own(load: Load) -> None:
    text = BASE.replace('database_url = "postgresql://db/vibespro"\n', "")
    settings = load(text, DATABASE_URL="postgresql://common/{context}")
    assert settings.contexts["sea"].database_url.get_secret_value() == "postgresql://sea:s3cret@db/sea"
    assert settings.contexts["vibespro"].database_url.get_secret_value() == "postgresql://common/vibespro"
    assert source(settings, "contexts.vibespro.database_url")[1] == "env DATABASE_URL"


def test_of_the_variables_of_the_message_contracts_values_win_and_prefixes_name_the_rest(load: Load) -> None:
    text = (
        f'{BASE}[contexts.sr]\ndatabase_url = "postgresql://db/sr"\n[contexts.vibespro.stream]\nmax_age = "1d"\n'
    )
    settings = load(
        text + 'name = "VIBESPRO_EVENTS"\n',
        NATS_STREAM_PREFIX="sr",
        NATS_CONSUMER_PREFIX="sr-consumer",
        NATS_MESSAGE_TTL_SECS="3600",
        NATS_MAX_MSGS_PER_SUBJECT="9",
        NATS_DUPLICATE_WINDOW_SECS="60",
        RELAY_CONTEXTS__SEA__STREAM__MAX_MSGS_PER_SUBJECT="8",
    )
    sea, sr, vibespro = (settings.contexts[name] for name in ("sea", "sr", "vibespro"))
    assert (sr.stream.name, sr.dlq.name, sea.stream.name) == ("sr-events", "sr-dlq", "sr-sea-events")
    assert vibespro.stream.name == "VIBESPRO_EVENTS"
    assert sea.subscriptions["from_vibespro"].durable == "sr-consumer-sea__from_vibespro"
    assert (sea.stream.max_age, vibespro.stream.max_age) == (timedelta(hours=1), timedelta(hours=1))
    assert (sr.stream.max_msgs_per_subject, sr.stream.duplicate_window) == (9, 60 * SECOND)
    assert sea.stream.max_msgs_per_subject == 8  # a variable that names the context is stronger
    # Dead letters are neither dropped earlier nor limited by subject.
    assert (sea.dlq.max_age, sea.dlq.max_msgs_per_subject) == (timedelta(days=30), -1)
    assert source(settings, "contexts.sea.stream.max_age") == ("1h", "env NATS_MESSAGE_TTL_SECS")


def test_a_subscription_follows_the_stream_that_a_prefix_renames(load: Load) -> None:
    error = refused(load, BASE, NATS_STREAM_PREFIX="dev")
    assert error.field == f"{SUB}.stream"
    assert 'NATS_STREAM_PREFIX calls VIBESPRO_EVENTS dev-vibespro-events (write stream = "dev' in str(error)
    letters = BASE.replace("VIBESPRO_EVENTS", "VIBESPRO_DLQ").replace("vibespro.event.>", "vibespro.dlq.>")
    assert "dev-vibespro-dlq" in str(refused(load, letters, NATS_STREAM_PREFIX="dev"))
    follows = BASE.replace("VIBESPRO_EVENTS", "${NATS_STREAM_PREFIX:-x}-vibespro-events")
    own = f'{BASE}[contexts.vibespro.stream]\nname = "VIBESPRO_EVENTS"\n'
    foreign = BASE.replace("VIBESPRO_EVENTS", "ELSEWHERE")
    for text in (follows, own, foreign):
        load(text, NATS_STREAM_PREFIX="dev")


def test_empty_variables_and_those_of_kubernetes_are_not_ours(load: Load) -> None:
    settings = load(
        BASE,
        NATS_URL="",
        RELAY_LOG_LEVEL="",
        RELAY_SERVICE_HOST="10.0.0.1",
        RELAY_PORT="tcp://10.0.0.1:80",
        RELAY_OPS_PORT_80_TCP_ADDR="10.0.0.1",
    )
    assert settings.log_level == "INFO"


def test_the_file_is_named_by_argument_or_variable(load: Load, tmp_path: Path) -> None:
    load()
    (tmp_path / "other.toml").write_text('[contexts.other]\ndatabase_url = "postgresql://db/other"\n')
    assert list(load(RELAY_CONFIG="other.toml").contexts) == ["other"]
    assert list(load_settings(tmp_path / "relay.toml", {"RELAY_CONFIG": "other.toml"}).contexts) == [
        "sea",
        "vibespro",
    ]


# --- what is shown, and what is not ---


def test_no_secret_is_shown(load: Load) -> None:
    settings = load(
        BASE.replace("handler =", 'signing_secret = "whsec_aGlkZGVu"\nhandler ='),
        NATS_URL="nats://t0ken@nats:4222,nats://u:pa55@other",
        REDIS_URL="redis://:hunter2@redis:6379/0?password=hunter3",
    )
    shown = repr(effective(settings)) + repr(settings)
    for secret in ("s3cret", "whsec_aGlkZGVu", "t0ken", "pa55", "hunter2", "hunter3"):
        assert secret not in shown
    assert source(settings, "nats_url")[0] == "nats://***@nats:4222,nats://***@other"
    assert source(settings, "redis_url")[0] == "redis://***@redis:6379/0?***"
    assert source(settings, "contexts.sea.database_url") == ("postgresql://***@db/sea", "relay.toml:2")
    assert source(settings, f"{SUB}.signing_secret") == ("***", "relay.toml:6")
    assert hide_url("whatever this is") == "***"


def test_every_writable_key_is_shown_once(load: Load) -> None:
    keys = [key for key, _, _ in effective(load())]
    assert len(keys) == len(set(keys))
    assert {"log_format", "contexts.sea.dlq.max_bytes", f"{SUB}.ack_wait"} <= set(keys)
    assert not [key for key in keys if key.endswith((".sea.name", "from_vibespro.name", "from_vibespro.context"))]


def test_database_urls_get_one_spelling(load: Load) -> None:
    for written in ("postgres://h/sea", "postgresql+psycopg://h/sea", "postgresql://h/sea"):
        settings = load(RELAY_CONTEXTS__SEA__DATABASE_URL=written)
        assert settings.contexts["sea"].database_url.get_secret_value() == "postgresql://h/sea"


@pytest.mark.parametrize(
    "url",
    ["postgresql:///sea?host=/run/postgresql", "postgresql://h1:5432,h2:5433/sea?target_session_attrs=primary"],
)
def test_urls_that_libpq_knows(load: Load, url: str) -> None:
    assert load(RELAY_CONTEXTS__SEA__DATABASE_URL=url).contexts["sea"].database_url.get_secret_value() == url


# --- specs ---


def test_streams_and_consumers_of_one_context(load: Load) -> None:
    settings = load(f"{BASE}[contexts.vibespro.stream]\nreplicas = 3\n")
    assert [spec.name for spec in settings.streams("sea")] == ["SEA_EVENTS", "SEA_DLQ", "RELAY_ADVISORIES"]
    assert settings.streams("sea")[-1].subjects == RELAY_ADVISORIES.subjects
    assert settings.streams("sea")[-1].replicas == 3
    assert [spec.durable for spec in settings.consumers("sea")] == [
        "sea__from_vibespro",
        "relay__VIBESPRO_EVENTS__sea__from_vibespro",
        "relay__sea__dead_letters",
    ]
    assert settings.consumers("vibespro") == []
    with pytest.raises(UnknownContext, match="known: sea, vibespro"):
        settings.streams("nope")


def test_dead_letters_are_as_safe_as_events(load: Load) -> None:
    text = f"{BASE}[contexts.vibespro.stream]\nreplicas = 3\n"
    assert load(text).contexts["vibespro"].dlq.replicas == 3
    assert load(f"{text}[contexts.vibespro.dlq]\nreplicas = 5\n").contexts["vibespro"].dlq.replicas == 5


def test_an_unlimited_stream(load: Load) -> None:
    text = f'{BASE}[contexts.vibespro.stream]\nmax_age = "unlimited"\nmax_bytes = "unlimited"\n'
    settings = load(text)
    spec = settings.contexts["vibespro"].stream.spec()
    assert (spec.max_age, spec.max_bytes) == (None, -1)
    assert source(settings, "contexts.vibespro.stream.max_age") == ("unlimited", "relay.toml:10")
