"""Connections of Django as targets: an event goes the way of the atomic block that it is added in."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from django.db.utils import DatabaseError

from relay import Outbox
from relay.domain.errors import DuplicateMessage, NoTransaction, UnsupportedTarget
from tests.integration.publishing import django_connection, event, query
from tests.integration.test_outbox_targets import changed, names

OUTBOX = Outbox("vibespro")


@pytest.fixture
def django(database_url: str) -> Any:
    query(database_url, "CREATE TABLE vibes (id int)")
    connections["default"] = django_connection(database_url)
    yield connections["default"]
    connections["default"].close()
    del connections["default"]


def test_atomic_blocks_commit_their_events_or_undo_them(django: Any, database_url: str) -> None:
    with transaction.atomic():
        OUTBOX.add(django, event("kept"))
        with pytest.raises(LookupError), transaction.atomic():  # noqa: PT012
            OUTBOX.add(django, event("undone"))
            raise LookupError
        assert names(database_url) == []
    with pytest.raises(LookupError), transaction.atomic():  # noqa: PT012
        OUTBOX.add(django, event("undone"))
        raise LookupError
    assert names(database_url) == ["kept"]


def test_outside_of_atomic_django_would_commit_so_it_is_refused(django: Any, database_url: str) -> None:
    with pytest.raises(NoTransaction) as caught:
        OUTBOX.add(django, event("1"))
    assert "atomic" in (caught.value.hint or "")
    django.set_autocommit(False)
    OUTBOX.add(django, event("2"))
    django.commit()
    assert names(database_url) == ["2"]


def test_after_a_refused_event_an_atomic_block_can_only_be_left(django: Any, database_url: str) -> None:
    taken = uuid4()
    with transaction.atomic():
        with django.cursor() as cursor:
            cursor.execute("INSERT INTO vibes VALUES (1)")
        with pytest.raises(DuplicateMessage), transaction.atomic():
            OUTBOX.add_many(django, [event("a", id=taken), event("b", id=taken)])
        OUTBOX.add(django, event("after", id=taken))
    with transaction.atomic():
        with django.cursor() as cursor:
            cursor.execute("INSERT INTO vibes VALUES (1)")
        with pytest.raises(DuplicateMessage):
            OUTBOX.add(django, event("again", id=taken))
        with pytest.raises(TransactionManagementError):
            OUTBOX.add(django, event("next"))
    assert (names(database_url), changed(database_url)) == (["after"], 1)


def test_other_errors_are_those_of_django(django: Any, database_url: str) -> None:
    with transaction.atomic():
        django.ensure_connection()
        with pytest.raises(psycopg.Error):
            django.connection.execute("SELECT 1/0")
        with pytest.raises(NoTransaction):
            OUTBOX.add(django, event("1"))
    with pytest.raises(DatabaseError), transaction.atomic():  # noqa: PT012
        django.close()
        OUTBOX.add(django, event("1"))
    assert names(database_url) == []


def test_another_database_of_django_is_refused(django: Any) -> None:
    from django.db.backends.sqlite3.base import DatabaseWrapper

    with pytest.raises(UnsupportedTarget, match="Django to PostgreSQL"):
        OUTBOX.add(DatabaseWrapper({"NAME": ":memory:", "TIME_ZONE": None}), event("1"))
