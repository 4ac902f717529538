"""The plugin as a user has it: pytest in a folder with nothing of ours but what is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.pages import blocks

ROOT = Path(__file__).parents[2]
#: Whoever installs jetrelay alone has no other plugin. xdist is loaded by name where a test wants it.
ALONE = ("-p", "no:cacheprovider", "-p", "jetrelay")
MODULES = """
def test_nothing():
    pass

def test_what_is_loaded():
    import sys
    names = [name.partition(".")[0] for name in sys.modules]
    heavy = {"relay", "consumer", "tasks", "scheduler", "sqlalchemy", "pydantic", "psycopg", "dramatiq", "nats"}
    assert sorted(heavy.intersection(names)) == []
    ours = [name for name in sys.modules if name.startswith("jetrelay")]
    assert ours == ["jetrelay_pytest", "jetrelay_pytest.plugin"]
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as a user does, with jetrelay's plugin found by its entry point and no other."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *ALONE, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def written(folder: Path) -> Path:
    """Write the blocks of the page that name a file."""
    files = [block.text.removeprefix("# ").partition("\n") for block in blocks("docs/how-to/testing.md")]
    assert [name for name, _, _ in files][:3] == ["myapp/service.py", "test_service.py", "test_expectations.py"]
    for name, _, text in files:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def test_the_page_says_what_is_so_and_several_processes_may_share_it(tmp_path: Path) -> None:
    done = run(written(tmp_path), "-p", "xdist", "-n", "2", "--ignore", "test_stack.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_where_it_is_not_used_nothing_of_jetrelay_is_imported(tmp_path: Path) -> None:
    (tmp_path / "test_modules.py").write_text(MODULES)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_a_failure_shows_what_was_committed_and_where_the_test_asked(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "test_it.py").write_text(
        "from sqlalchemy.orm import Session\n"
        "from myapp.service import VibeCreated, create_vibe\n\n"
        "def test_it(jetrelay_outbox):\n"
        "    with Session() as session, session.begin():\n"
        "        create_vibe(session, '1', 'First light')\n"
        "    jetrelay_outbox.assert_published(VibeCreated, {'title': 'Dusk'})\n"
    )
    done = run(tmp_path, "test_it.py")
    assert done.returncode == 1
    assert "{'title': 'Dusk'}" in done.stdout
    assert '{"vibe_id": "1", "title": "First light"}' in done.stdout
    assert "test_it.py:7: AssertionError" in done.stdout


def test_the_fixtures_have_names_of_their_own(tmp_path: Path) -> None:
    done = run(tmp_path, "--fixtures", "-q")
    [section] = re.findall(
        r"fixtures defined from jetrelay_pytest.plugin -+\n(.*?)(?=\n-{5}|\Z)", done.stdout, re.DOTALL
    )
    names = re.findall(r"^(\w+)(?: \[\w+ scope\])? -- ", section, re.MULTILINE)
    assert set(names) == {"jetrelay_outbox", "jetrelay_tasks", "jetrelay_stack", "jetrelay_failpoints"}


def example(file: str) -> subprocess.CompletedProcess[str]:
    """Run a file of the example service's own tests, as its README says."""
    # The configuration of the checkout has a time limit.
    return run(ROOT, "-p", "pytest_timeout", f"examples/cases_service/{file}")


def test_the_example_service_tests_itself_with_it() -> None:
    done = example("test_cases.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
