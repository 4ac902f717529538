"""URLs with passwords: no part of one is shown, and none is left to be misread."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.errors import ConfigurationError
from relay.settings.urls import hide_url
from tests.unit.settings_support import Load, loader

quick = settings(max_examples=200, deadline=None)
signs = st.text("aZ1@,/#?:[]%;=& ", max_size=12)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:12,s3cret@db", "postgresql://***@db"),
        ("postgresql://app:s3@cret@db/sea", "postgresql://***@db/sea"),
        ("postgresql://app:s3/cret@h1:1,h2:2/sea?sslmode=require", "postgresql://***@h1:1,h2:2/sea?***"),
        ("postgresql://app:s3?cret@db/sea", "postgresql://***"),
        ("postgresql://app:s3#cret@db/sea", "postgresql://***"),
        ("postgresql://app@db/sea?password=s3@cret", "postgresql://***"),
        ("postgresql://app:s3%40%2C%2Fcret@[::1]:5432/sea", "postgresql://***@[::1]:5432/sea"),
        ("postgresql:///sea?host=/run/s3cret", "postgresql:///sea?***"),
        ("host=db password=s3cret", "***"),
        ("password=s3cret://x@db", "***"),
        ("nats://s3,cret@a:4222,tls://u:s3@cret@b", "nats://***@a:4222,tls://***@b"),
        ("nats://a:1, nats://u:s3cret@b:2", "nats://a:1,nats://***@b:2"),
        ("nats://a:1,b:2", "nats://a:1,b:2"),
        ("redis://:a,redis://s3cret@h/0", "redis://***@h/0"),
        ("rediss://acl:s3cret@h:6380/1?ssl_ca_certs=x", "rediss://***@h:6380/1?***"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_no_part_of_a_password_is_shown(url: str, shown: str) -> None:
    assert hide_url(url) == shown
    assert not any(part in shown for part in ("s3", "cret", "12,"))


@quick
@given(user=signs, password=signs, scheme=st.sampled_from(["postgresql", "redis", "nats", "tls"]))
def test_whatever_a_password_is_made_of_it_is_not_shown(user: str, password: str, scheme: str) -> None:
    shown = hide_url(f"{scheme}://{user}:<{password}>@host:1/x")
    assert not {"<", ">"} & set(shown)
    assert shown in (f"{scheme}://***@host:1/x", f"{scheme}://***", "***")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:s3@cret@db/sea",
        "postgresql://app:12/s3@cret",
        "postgresql://app:12?s3cret@db",
        "postgresql://app:s3#cret@db",
    ],
)
def test_a_password_that_libraries_read_differently_is_refused(load: Load, url: str) -> None:
    """One of them would take a part of it for the name of a host, and say that it cannot be found."""
    with pytest.raises(ConfigurationError) as raised:
        load(RELAY_CONTEXTS__SEA__DATABASE_URL=url)
    assert "s3" not in str(raised.value)
    assert "cret" not in str(raised.value)
