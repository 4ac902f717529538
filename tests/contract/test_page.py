"""Pages with tests of an application: their code is a test file that passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "passed"), [("how-to/test-without-servers.md", "6 passed"), ("reference/envelopes.md", "15 passed")]
)
def test_the_code_of_a_page_is_a_test_file_that_passes(tmp_path: Path, page: str, passed: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (tmp_path / "test_page.py").write_text("\n".join(blocks))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, passed in ended.stdout) == (0, True), ended.stdout
