"""A Valkey with ACL users behind TLS: the jobs' broker, the gates and `relay health` prove themselves alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.exceptions

from relay.adapters.dramatiq.gates import Gates
from relay.bootstrap import job_broker
from relay.credentials import redis_options
from relay.domain.errors import ConfigurationError, QueueUnreachable
from relay.domain.findings import Examined
from relay.ops.queries import Diagnose, queries
from relay.settings import Settings, load_settings
from tests.jobs import job
from tests.secured import Authority, GuardedValkey, TlsFront

pytestmark = pytest.mark.anyio

PASSWORD = "p@ss,w/rd?"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def front(server_root: Path, authority: Authority) -> Iterator[TlsFront]:
    users = (f"relay on >{PASSWORD} ~relay:* &* +@all", f"reader on >{PASSWORD} ~relay:* +@read +@connection")
    with (
        GuardedValkey(server_root / "guarded-valkey", *users) as server,
        TlsFront(server.port, authority.demanding()) as front,
    ):
        yield front


@pytest.fixture
def misnamed(authority: Authority) -> Iterator[TlsFront]:
    with TlsFront(1, authority.demanding(misnamed=True)) as front:
        yield front


@pytest.fixture
def variables(front: TlsFront, authority: Authority, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    return {
        "REDIS_URL": f"rediss://localhost:{front.port}/0",
        "RELAY_REDIS__USER": "relay",
        "RELAY_REDIS__PASSWORD_FILE": str(tmp_path / "password"),
        **authority.variables("RELAY_REDIS"),
    }


def settings(variables: dict[str, str]) -> Settings:
    return load_settings(environ={"RELAY_CONTEXTS__SEA__DATABASE_URL": "postgresql://nowhere/sea", **variables})


async def health(known: Settings) -> Examined:
    found = (await queries(known).ask_async(Diagnose())).unwrap()
    return next(examined for examined in found.examined if examined.server == "redis")


async def use(known: Settings) -> None:
    """Put a job into a queue and open a gate, as a scheduler does."""
    broker = job_broker(known)
    broker.enqueue_many([job("test", "nothing")])
    assert broker.backlog("test")
    gates = Gates(known.redis_url.get_secret_value(), known.redis_namespace, **redis_options(known))
    token = await gates.open("test", force=True)
    assert token
    await gates.close("test", token)
    await gates.aclose()
    broker.client.close()


async def test_an_acl_user_by_certificate_and_password(variables: dict[str, str], front: TlsFront) -> None:
    away = front.turned_away
    await use(settings(variables))
    assert (await health(settings(variables))).healthy
    assert front.turned_away == away


async def test_user_and_password_in_the_url_which_is_in_a_file(
    variables: dict[str, str], front: TlsFront, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(f"rediss://relay:p%40ss%2Cw%2Frd%3F@localhost:{front.port}/0\n")
    given = {name: value for name, value in variables.items() if name.endswith(("__CA", "__CERTIFICATE", "__KEY"))}
    await use(settings({**given, "REDIS_URL_FILE": str(tmp_path / "url")}))


async def test_a_wrong_password_is_no_server_that_is_away(variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "password").write_text("wr0ng")
    known = settings(variables)
    with pytest.raises(QueueUnreachable):
        await use(known)
    found = await health(known)
    assert not found.healthy
    assert found.findings[0].text.startswith("Redis refuses the credentials")
    assert "wr0ng" not in str(found)


async def test_a_command_that_is_not_granted_is_named(variables: dict[str, str]) -> None:
    with pytest.raises(QueueUnreachable, match=r"'\w+' command"):
        await use(settings({**variables, "RELAY_REDIS__USER": "reader"}))


@pytest.mark.parametrize("change", ["no certificate", "stranger", "another host"])
async def test_a_connection_without_proof_is_refused(
    variables: dict[str, str], authority: Authority, change: str, request: pytest.FixtureRequest
) -> None:
    changed = dict(variables)
    match change:
        case "no certificate":
            del changed["RELAY_REDIS__CERTIFICATE"], changed["RELAY_REDIS__KEY"]
        case "stranger":
            changed["RELAY_REDIS__CA"] = str(authority.stranger)
        case _:
            other = request.getfixturevalue("misnamed")
            changed["REDIS_URL"] = f"rediss://localhost:{other.port}/0"
    with pytest.raises((QueueUnreachable, redis.exceptions.RedisError)):
        await use(settings(changed))
    found = await health(settings(changed))
    assert not found.healthy
    # Of a missing certificate TLS tells the client no more than a closed connection.
    [told] = found.findings
    assert told.text.startswith("Redis is not reachable" if change == "no certificate" else "Redis: no TLS")


def test_certificates_that_cannot_be_used_are_a_wrong_configuration(
    variables: dict[str, str], authority: Authority
) -> None:
    for key, path, expected in (
        ("CA", "/nowhere/ca.pem", "cannot read /nowhere/ca.pem: No such file"),
        ("CA", str(authority.key), "holds no certificate"),
        ("KEY", str(authority.server_key), "are no certificate and its key"),
    ):
        with pytest.raises(ConfigurationError, match=expected) as caught:
            redis_options(settings({**variables, f"RELAY_REDIS__{key}": path}))
        assert caught.value.field in ("redis.ca", "redis.certificate")
