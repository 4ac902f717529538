"""Pages with tests of an application: their code is a test file that passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import code

PAGES = {
    "test-without-servers": code("docs/how-to/test-without-servers.md", "python", 1, 2, 3),
    "envelopes": code("docs/reference/envelopes.md", "python", 1, 2),
}


@pytest.mark.parametrize(("page", "passed"), [("test-without-servers", "6 passed"), ("envelopes", "15 passed")])
def test_the_code_of_a_page_is_a_test_file_that_passes(tmp_path: Path, page: str, passed: str) -> None:
    (tmp_path / "test_page.py").write_text(PAGES[page])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, passed in ended.stdout) == (0, True), ended.stdout
