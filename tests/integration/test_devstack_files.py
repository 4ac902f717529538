"""What the development stack decides before any server runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from relay.devstack import (
    DevStack,
    NatsServer,
    PostgresServer,
    Server,
    ValkeyServer,
    wheels,
)
from relay.devstack.as_root import Account, home_for, readable_package
from relay.domain.errors import MissingExtraError

NOBODY = Account(65534, 65534)


@pytest.fixture
def shelter(tmp_path: Path) -> Path:
    return tmp_path / "shelter"


@pytest.fixture
def shut(tmp_path: Path) -> Path:
    """A directory that only its owner may enter."""
    path = tmp_path / "shut"
    path.mkdir(mode=0o700)
    return path


# --- wheels ---


@pytest.mark.parametrize("kind", [PostgresServer, NatsServer, ValkeyServer])
def test_a_missing_wheel_says_what_to_install(
    kind: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "distribution", _not_installed)
    server = kind(tmp_path)
    with pytest.raises(MissingExtraError) as caught:
        server.start()
    assert caught.value.code == "MISSING_EXTRA"
    assert "jetrelay[embedded]" in str(caught.value.hint)
    assert not server.running


def test_a_stack_without_its_wheels_gives_the_directory_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "distribution", _not_installed)
    for _ in range(2):
        with pytest.raises(MissingExtraError):
            DevStack(tmp_path).start()


def _not_installed(name: str) -> None:
    raise PackageNotFoundError(name)


# --- where the files of another account lie ---


def test_data_stays_in_the_directory_when_the_account_can_enter_it(
    tmp_path: Path, shelter: Path, shut: Path
) -> None:
    assert home_for(shut, None, shelter) == shut
    assert home_for(Path("/usr/lib"), NOBODY, shelter) == Path("/usr/lib")
    assert not shelter.exists()


def test_data_goes_to_the_shelter_when_the_account_is_shut_out(shelter: Path, shut: Path) -> None:
    home = home_for(shut, NOBODY, shelter)
    assert home.parent == shelter
    assert home.stat().st_mode & 0o777 == 0o711
    assert home_for(shut, NOBODY, shelter) == home
    assert (shut / "elsewhere").resolve() == home


def test_a_shelter_is_removed_once_its_directory_is_gone(tmp_path: Path, shelter: Path, shut: Path) -> None:
    kept = home_for(shut, NOBODY, shelter)
    gone = tmp_path / "gone"
    gone.mkdir(mode=0o700)
    abandoned = home_for(gone, NOBODY, shelter)
    (gone / "elsewhere").unlink()
    anew = home_for(gone, NOBODY, shelter)
    assert anew != abandoned
    assert not abandoned.exists()
    assert kept.exists()


def test_a_wheel_that_the_account_cannot_read_is_copied_once(shelter: Path, shut: Path) -> None:
    package = shut / "some_package"
    (package / "bin").mkdir(parents=True)
    (package / "bin" / "tool").write_text("tool")
    (package / "bin" / "tool").chmod(0o700)
    (package / "notes").write_text("notes")
    (package / "notes").chmod(0o600)
    (shut / "some_package.libs").mkdir()
    (shut / "some_package.libs" / "lib.so").write_text("library")

    copy = readable_package(package, "1.0", NOBODY, shelter)

    assert copy == shelter / "some_package-1.0" / "some_package"
    assert (copy / "bin" / "tool").stat().st_mode & 0o777 == 0o705
    assert (copy / "notes").stat().st_mode & 0o777 == 0o604
    assert (copy.parent / "some_package.libs" / "lib.so").read_text() == "library"
    assert readable_package(package, "1.0", NOBODY, shelter) == copy
    assert [path.name for path in shelter.iterdir()] == ["some_package-1.0"]
    assert readable_package(package, "1.0", None, shelter) == package
