"""What a module imports is named in pyproject.toml: by jetrelay itself, or by the extra that the module is for.

A user has nothing else. The environment of the tests has every extra, and could not tell.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions, requires

from tests.repository.test_imports import PACKAGES, ROOT, imported, needed

#: Modules that are loaded only where an extra is installed, by how they begin, and that extra.
EXTRAS = {
    "jetrelay_pytest.plugin": "pytest",  # which loads it
    "relay.bus.http": "handler",
    "jetrelay_pytest.stack": "embedded",
    "relay.cli.demo.evidence": "demo",
    "relay.cli.demo.play": "demo",
    "relay.cli.demo.profiles": "demo",
    "relay.cli.demo.screen": "demo",
    "relay.devstack": "embedded",
    "relay.devstack.sample": "demo",
    "relay.adapters.aes_gcm": "personal",
    "relay.adapters.aws_kms": "kms",
    "relay.handler": "handler",
    "relay.ops.api": "ops",
    "relay.ops.console": "ops",
    "relay.telemetry.exposition": "metrics",
    "relay.telemetry.metrics": "metrics",
    "relay.telemetry.spans.": "otel",
    "relay.telemetry.gauges": "metrics",
}
#: Libraries that another one cannot be without, and that one.
PART_OF = {"pydantic-core": "pydantic", "starlette": "fastapi", "anyio": "starlette", "botocore": "boto3"}
#: Imported by one function only. No requirement can name it: it asks for an older dramatiq.
ELSEWHERE = {"dramatiq_dashboard"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BROUGHT = packages_distributions()
#: The modules of the wheel, those that are run as programs too.
PATHS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    if package != "chaos"
    for path in sorted((ROOT / package).rglob("*.py"))
}


def name_of(requirement: str) -> str:
    """The library that a requirement names, in the one way of writing it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~;, (]", requirement)[0]).lower()


@cache
def named(extra: str | None) -> frozenset[str]:
    """The libraries that come with jetrelay, and with an extra of it."""
    found = {name_of(it) for it in PROJECT["dependencies"]}
    if extra == "pytest":
        return frozenset({*found, "pytest"})
    for requirement in PROJECT["optional-dependencies"][extra] if extra else ():
        if others := re.match(r"jetrelay\[(.+)\]", requirement):
            found.update(*(named(other) for other in others[1].split(",")))
        else:
            found.add(name_of(requirement))
    for part, whole in PART_OF.items():
        if whole in found:
            found.add(part)
    return frozenset(found)


def extra_of(module: str) -> str | None:
    begins = [it for it in EXTRAS if f"{module}.".startswith(it if it.endswith(".") else f"{it}.")]
    return EXTRAS[max(begins, key=len)] if begins else None


def libraries(names: Iterable[str]) -> dict[str, set[str]]:
    """The modules of others among these, and the libraries that bring each."""
    tops = {name.partition(".")[0] for name in names} - {*PACKAGES, *sys.stdlib_module_names, *ELSEWHERE}
    return {top: {name_of(it) for it in BROUGHT.get(top, [])} for top in tops}


def statements(module: str) -> list[ast.stmt]:
    """The imports of a module, those of its functions too."""
    found = ast.walk(ast.parse(PATHS[module].read_text()))
    return [it for it in found if isinstance(it, ast.Import) or (isinstance(it, ast.ImportFrom) and not it.level)]


def unnamed(names: Iterable[str], allowed: frozenset[str]) -> list[str]:
    return [top for top, brought in libraries(names).items() if not brought & allowed]


def test_what_a_module_imports_is_named() -> None:
    lacking, early = {}, {}
    for module, path in PATHS.items():
        asked, allowed = {*imported(ast.parse(path.read_text()).body)}, named(extra_of(module))
        lacking[module] = unnamed(asked, allowed)
        early[module] = [it for it in needed(module, asked, {*PATHS}) if not named(extra_of(it)) <= allowed]
    assert {module: found for module, found in lacking.items() if found} == {}
    assert {module: found for module, found in early.items() if found} == {}, "loads what only an extra can load"


def test_what_a_function_imports_is_named_by_some_extra() -> None:
    extras = [named(it) for it in PROJECT["optional-dependencies"] if it not in ("dev", "docs")]
    allowed = frozenset().union(*extras, named("pytest"))
    lacking = {module: unnamed(imported(statements(module)), allowed) for module in PATHS}
    assert {module: found for module, found in lacking.items() if found} == {}


def test_each_library_that_is_named_is_imported() -> None:
    found = libraries(name for module in PATHS for name in imported(statements(module)))
    core = {name_of(it) for it in PROJECT["dependencies"]}
    assert core - {it for brought in found.values() for it in brought} == set()


def test_what_comes_with_another_library_does() -> None:
    for part, whole in PART_OF.items():
        always = [name_of(it) for it in requires(whole) or () if "extra ==" not in it]
        assert part in always, whole
