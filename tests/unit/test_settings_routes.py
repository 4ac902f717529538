"""Streams and routes in relay.toml: what they mean, and what is refused with the line to mend."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay.cli import create_app
from relay.domain.errors import ForeignSubject, InvalidSubject
from relay.domain.routing import Routing
from tests.unit.settings_support import Load, loader, refusal, source

#: Two streams, and the table of MicroDAO's §11.
CITY = """\
[contexts.city]
database_url = "postgresql://db/city"
subject = "city.at.other"
[contexts.city.streams.STREAM_AGENT_RUN]
subjects = ["agent.run.>"]
replicas = 3
[contexts.city.streams.STREAM_RWA]
subjects = ["rwa.inventory.*", "city.at.>"]
[[contexts.city.routes]]
topics = ["agent.run.>"]
stream = "STREAM_AGENT_RUN"
[[contexts.city.routes]]
types = ["Price*", "stock_moved"]
subject = "rwa.inventory.{name}"
[[contexts.city.routes]]
types = ["*_moved"]
subject = "city.at.moved.v{version}"
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def city(text: str = CITY) -> str:
    return text.replace('types = ["*_moved"]', 'types = ["cart_moved"]')


# --- what they mean ---


def test_the_first_row_that_fits_decides(load: Load) -> None:
    routing = load(city()).contexts["city"].routing
    assert routing.destination("PriceSet", 1, None) == ("rwa.inventory.PriceSet", None)
    assert routing.destination("stock_moved", 2, None) == ("rwa.inventory.stock_moved", None)
    assert routing.destination("cart_moved", 2, None) == ("city.at.moved.v2", None)
    assert routing.destination("stock_moved_off", 1, None) == ("city.at.other", None)
    with_a_first = city().replace(
        "[[contexts", '[[contexts.city.routes]]\ntypes = ["PriceSet"]\nsubject = "city.at.first"\n[[contexts', 1
    )
    assert load(with_a_first).contexts["city"].routing.subject("PriceSet", 1, None) == "city.at.first"


def test_a_topic_stays_the_subject_and_gets_its_stream(load: Load) -> None:
    routing = load(city()).contexts["city"].routing
    assert routing.destination("PriceSet", 1, "agent.run.started") == ("agent.run.started", "STREAM_AGENT_RUN")
    for topic in ("agent.runner.started", "agent.run"):
        with pytest.raises(ForeignSubject):
            routing.destination("PriceSet", 1, topic)


def test_a_row_for_topics_may_give_another_subject(load: Load) -> None:
    text = city().replace('stream = "STREAM_AGENT_RUN"\n', 'subject = "agent.run.{name}"\n')
    assert load(text).contexts["city"].routing.subject("PriceSet", 1, "agent.run.x.y") == "agent.run.PriceSet"


def test_a_row_of_types_may_give_a_stream_alone(load: Load) -> None:
    text = city().replace('subject = "rwa.inventory.{name}"', 'stream = "STREAM_RWA"')
    assert load(text).contexts["city"].routing.destination("PriceSet", 1, None) == ("city.at.other", "STREAM_RWA")


def test_bad_values_pass_neither_by_a_route_nor_by_a_topic(load: Load) -> None:
    routing = load(city()).contexts["city"].routing
    for event_type, topic in (("*", None), ("x", "agent.run.>"), ("x", "agent.run. ")):
        with pytest.raises(InvalidSubject):
            routing.destination(event_type, 1, topic)


def test_all_streams_are_made_permitted_and_shown(load: Load) -> None:
    settings = load(city())
    names = [spec.name for spec in settings.streams()]
    assert names == ["STREAM_AGENT_RUN", "STREAM_RWA", "CITY_DLQ", "RELAY_ADVISORIES"]
    assert list(settings.contexts["city"].routing.streams) == names[:2]
    assert [spec.replicas for spec in settings.streams()] == [3, 1, 3, 3]
    assert source(settings, "contexts.city.routes.1.subject") == ("rwa.inventory.{name}", "relay.toml:14")
    assert source(settings, "contexts.city.streams.STREAM_RWA.name") == ("STREAM_RWA", "default")


def test_the_fleet_may_publish_to_all_streams_and_audit_them(load: Load) -> None:
    load(city(), DATABASE_URL="postgresql://db/city")
    users = CliRunner().invoke(create_app(["streams"]), ["streams", "permissions"]).output
    fleet = users[: users.index("user: relay_admin")]
    for name in ("STREAM_AGENT_RUN", "STREAM_RWA"):
        assert f'"$JS.API.STREAM.MSG.GET.{name}"' in fleet
        assert f'"$JS.API.STREAM.CREATE.{name}"' in users
    for subject in ("agent.run.>", "rwa.inventory.*", "city.dlq.>"):
        assert f'"{subject}"' in fleet


def test_one_stream_and_several_may_stand_beside_each_other(load: Load) -> None:
    more = '[contexts.city.stream]\nname = "CITY"\nsubjects = ["city.at.>"]\n'
    settings = load(city().replace(', "city.at.>"', "") + more)
    assert list(settings.contexts["city"].routing.streams) == ["CITY", "STREAM_AGENT_RUN", "STREAM_RWA"]


def test_a_context_of_topics_needs_no_subject_for_others(load: Load) -> None:
    text = city()
    text = text[: text.index("[[contexts.city.routes]]\ntypes")].replace('subject = "city.at.other"\n', "")
    assert load(text).contexts["city"].routing.destination("x", 1, "agent.run.a").stream == "STREAM_AGENT_RUN"


def test_variables_reach_streams_and_routes(load: Load) -> None:
    settings = load(
        city(),
        RELAY_CONTEXTS__CITY__STREAMS__STREAM_RWA__MAX_AGE="3d",
        RELAY_CONTEXTS__CITY__ROUTES='[{"types": "Price*", "subject": "city.at.price"}]',
        NATS_STREAM_PREFIX="dev",
        NATS_MAX_MSGS_PER_SUBJECT="7",
    )
    city_ = settings.contexts["city"]
    assert city_.routing.subject("PriceSet", 1, None) == "city.at.price"
    assert city_.streams["STREAM_RWA"].max_age.days == 3
    assert [stream.max_msgs_per_subject for stream in city_.event_streams] == [7, 7]
    # The key of a stream's table is its name; only what has no name gets one from the prefix.
    assert [spec.name for spec in settings.streams()][:3] == ["STREAM_AGENT_RUN", "STREAM_RWA", "dev-city-dlq"]


# --- variables in texts of the file ---


def test_a_text_of_the_file_may_name_a_variable(load: Load) -> None:
    text = city().replace('"postgresql://db/city"', '"postgresql://${PGHOST:-db}/${PG_DB:-city}"')
    assert load(text).contexts["city"].database_url.get_secret_value() == "postgresql://db/city"
    settings = load(text, PGHOST="other", PG_DB="")
    assert source(settings, "contexts.city.database_url") == (
        "postgresql://other/city",
        "relay.toml:2 (env PGHOST)",
    )
    assert "relay.toml:2 (env PGHOST): contexts.city.database_url" in refusal(load, text, PGHOST="a b:c")


def test_what_only_looks_like_a_variable_stays(load: Load) -> None:
    text = city().replace("postgresql://db", "postgresql://me:${PASSWORD}$PASSWORD@db")
    url = load(text, PASSWORD="x").contexts["city"].database_url.get_secret_value()
    assert url == "postgresql://me:${PASSWORD}$PASSWORD@db/city"


# --- what is refused ---


@pytest.mark.parametrize(
    "change",
    [
        ('"rwa.inventory.{name}"', '"city.dlq.{name}"'),
        ('"rwa.inventory.{name}"', '"another.dlq.x.{name}"'),
        ('topics = ["agent.run.>"]', 'topics = ["agent.run.>", "city.dlq.>"]'),
        ('subject = "city.at.other"', 'subject = "{context}.dlq.{name}"'),
    ],
)
def test_no_way_of_events_leads_to_subjects_of_dead_letters(load: Load, change: tuple[str, str]) -> None:
    assert "is for dead letters" in refusal(load, city().replace(*change))


def test_an_event_that_would_get_a_subject_of_dead_letters_is_refused() -> None:
    routing = Routing(context="city", template="{context}.{name}.v{version}")
    assert routing.subject("moved", 1, None) == "city.moved.v1"
    for event_type, topic in (("dlq", None), ("moved", "city.dlq.moved"), ("moved", "another.dlq.x.y")):
        with pytest.raises(InvalidSubject):
            routing.destination(event_type, 1, topic)


@pytest.mark.parametrize(
    ("change", "line", "expected"),
    [
        (
            ('"rwa.inventory.{name}"', '"rwa.price.{name}"'),
            14,
            "routes.1.subject: no stream takes rwa.price.{name}",
        ),
        (('"rwa.inventory.{name}"', '"{kind}"'), 14, "routes.1.subject: has the unknown placeholder {kind}"),
        (('"city.at.moved.v{version}"', '"city..x"'), 17, "routes.2.subject: does not make a subject"),
        (('stream = "STREAM_AGENT_RUN"', 'stream = "STREAM_AGENTS"'), 11, "routes.0.stream: no stream is called"),
        (('stream = "STREAM_AGENT_RUN"', 'stream = "STREAM_RWA"'), 11, "STREAM_RWA does not take the topics"),
        (
            ("replicas = 3", "no_ack = true"),
            11,
            "STREAM_AGENT_RUN confirms nothing (no_ack), so it takes no events",
        ),
        (('stream = "STREAM_AGENT_RUN"', ""), 9, "routes.0: says neither subject nor stream"),
        (('topics = ["agent.run.>"]', ""), 9, "routes.0: fits no event"),
        (('"stock_moved"', '"stock moved"'), 13, "names no events"),
        (('"stock_moved"', '"*_moved"'), 13, "names no events"),
        (('subject = "city.at.other"', 'subject = "city"'), 3, "contexts.city.subject: no stream takes city"),
        (('subject = "city.at.other"', ""), 1, "contexts.city.subject: no stream takes {context}.event"),
        (('"city.at.>"]', '"agent.>"]'), 8, "streams.STREAM_RWA.subjects: agent.> overlaps with agent.run.>"),
        (("replicas = 3", 'no_ack = "perhaps"'), 6, "STREAM_AGENT_RUN.no_ack"),
        (
            ("replicas = 3", 'name = "STREAM_RWA"'),
            7,
            "declared differently at contexts.city.streams.STREAM_AGENT_RUN",
        ),
        (
            ('"city.at.>"]', '"city.at.>"]\nno_ack = true'),
            3,
            "contexts.city.subject: city.at.other goes to STREAM_RWA, which",
        ),
        (
            ('"city.at.>"]', '"city.at.>"]\nno_ack = true'),
            15,
            "routes.1.subject: rwa.inventory.{name} goes to STREAM_RWA",
        ),
        (('"city.at.>"]', '"city.at.>"]\n[contexts.city.dlq]\nno_ack = true'), 10, "a dead letter is lost unless"),
        (('"city.at.>"]', '"city.at.>"]\nmax_agee = 1'), 9, "did you mean max_age?"),
        (("types =", "type ="), 13, "did you mean types?"),
    ],
)
def test_mistakes_are_refused_with_their_line(
    load: Load, change: tuple[str, str], line: int, expected: str
) -> None:
    text = city()
    assert change[0] in text
    message = refusal(load, text.replace(*change, 1))
    assert expected in message
    assert f"relay.toml:{line}: " in message
