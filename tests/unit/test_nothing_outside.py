"""The guard of tests/unit/conftest.py does its work."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from relay import schemas


def test_a_process_is_not_started() -> None:
    with pytest.raises(AssertionError, match="starts a process"):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(AssertionError, match="starts a process"):
        os.fork()


def test_a_socket_is_neither_bound_nor_connected() -> None:
    with socket.socket() as one:
        with pytest.raises(AssertionError, match="opens a socket"):
            one.bind(("127.0.0.1", 0))
        with pytest.raises(AssertionError, match="opens a socket"):
            one.connect(("127.0.0.1", 9))


@pytest.mark.parametrize("name", ["README.md", "relay/outbox.py", "tests/conftest.py"])
def test_a_file_of_the_repository_is_not_read(name: str) -> None:
    with pytest.raises(AssertionError, match="reads a file of the repository"):
        (Path(__file__).parents[2] / name).read_text()


def test_files_of_the_test_and_of_the_product_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    assert (tmp_path / "mine").read_text() == "mine"
    assert schemas.schema("message-envelope")
