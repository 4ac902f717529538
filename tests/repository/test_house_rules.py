"""Rules that no linter knows. Each is a function from a file's text to complaints, tried on a bad text as well."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("relay", "tasks", "consumer", "scheduler", "jetrelay_pytest", "chaos")
TELEMETRY = {"structlog", "prometheus_client", "opentelemetry"}
SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE)\b|(?i:\s*(insert\s+into|update\s+\S+\s+set|delete\s+from|with\s+\w+\s+as\s*\())"
)
#: What functions of schema/rules.sql say: the lane of a key, the class of a lock, what holds back, what is spent.
WRITTEN_OUT = re.compile(r"& 63\b|\b17858829\d\d\b|generation = 0 OR|dead_letter_reason IS NULL AND attempts")


#: How many private names tests patch. This number only falls.
PATCHED = 13

Rule = Callable[[ast.Module], Iterator[str]]


def environment_reads(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb" | "getenv" | "putenv"):
                yield f"line {node.lineno}: os.{node.attr}"
            case ast.ImportFrom(module="os", names=names):
                found = {alias.name for alias in names} & {"environ", "environb", "getenv", "putenv"}
                yield from (f"line {node.lineno}: from os import {name}" for name in found)


def telemetry_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module)):
                modules = [module]
            case _:
                continue
        for module in modules:
            if module.partition(".")[0] in TELEMETRY:
                yield f"line {node.lineno}: import {module}"


def sql_strings(tree: ast.Module) -> Iterator[str]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings and SQL.match(text):
                yield f"line {node.lineno}: {text.split()[:3]}"


def plain_connections(tree: ast.Module) -> Iterator[str]:
    """A session of ours says what it needs. One that is opened here and there would depend on what others set."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="psycopg" | "asyncpg") as opened, attr="connect")):
                yield f"line {node.lineno}: {opened.id}.connect"
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="psycopg")), attr="connect")):
                yield f"line {node.lineno}: connect of a class of psycopg"
            case ast.Call(
                func=ast.Name(id="create_engine" | "create_async_engine" as made)
                | ast.Attribute(attr="create_engine" | "create_async_engine" as made),
                keywords=options,
            ) if not {"creator", "async_creator"} & {it.arg for it in options}:
                yield f"line {node.lineno}: {made}"


def facts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name, bases=[ast.Name(id=str(base))]) if base.endswith("Fact"):
                yield f"line {node.lineno}: class {name}"


def outages_without_remedy(tree: ast.Module) -> Iterator[str]:
    """An outage is told with what to do: by ``told``, which has the hint, and not by ``message``."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="OutageSeen"), keywords=keywords):
                texts = [keyword.value for keyword in keywords if keyword.arg == "error"]
                if any(isinstance(it, ast.Attribute) and it.attr == "message" for it in texts):
                    yield f"line {node.lineno}: error.message"


def own_waits(tree: ast.Module) -> Iterator[str]:
    """A loop that looks at a clock waits: `tests.waiting` does, with a deadline and a message."""
    for node in ast.walk(tree):
        if isinstance(node, ast.While):
            for one in ast.walk(node):
                match one:
                    case ast.Compare(left=left, comparators=others) if any(map(_asks_the_time, (left, *others))):
                        yield f"line {node.lineno}: waits by a loop of its own"


def _asks_the_time(node: ast.expr) -> bool:
    return any(isinstance(it, ast.Attribute) and it.attr in {"monotonic", "time"} for it in ast.walk(node))


def own_clocks(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) if name.endswith("Clock"):
                yield f"line {node.lineno}: class {name}"


def private_patches(tree: ast.Module) -> Iterator[str]:
    """A test gives values: whoever patches a private name knows the inside of the code."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(path)), _]):
                name = path.rpartition(".")[2]
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=str(name)), _]):
                pass
            case _:
                continue
        if name.startswith("_"):
            yield f"line {node.lineno}: {name}"


def asserted_words(tree: ast.Module) -> Iterator[str]:
    """Every five words in a row that an assertion compares with, and that are no SQL."""
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=expected) | ast.keyword(arg="match", value=expected):
                found = [it.value for it in ast.walk(expected) if isinstance(it, ast.Constant)]
            case _:
                continue
        for text in found:
            if isinstance(text, str) and not re.search(r"\b(SELECT|INSERT|UPDATE|DELETE)\b", text):
                words = text.split()
                yield from (" ".join(words[at : at + 5]) for at in range(len(words) - 4))


def classes(tree: ast.Module) -> Iterator[str]:
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def product_files(*suffixes: str) -> list[Path]:
    return [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in suffixes]


def complaints(rule: Rule, *allowed: str) -> list[str]:
    """Apply a rule to all product modules but those whose path starts with one of ``allowed``."""
    found = []
    for path in product_files(".py"):
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith(allowed):
            found += [f"{place}: {complaint}" for complaint in rule(parsed(path))]
    return found


def files_of_tests() -> dict[str, Path]:
    return {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "tests").rglob("*.py"))}


def complaints_of_tests(rule: Rule, allowed: str = "") -> list[str]:
    """Apply a rule to all modules of tests but one."""
    files = files_of_tests()
    assert not allowed or allowed in files
    return [
        f"{name}: {complaint}"
        for name, path in files.items()
        if name != allowed
        for complaint in rule(parsed(path))
    ]


def test_the_product_is_there_to_be_checked() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in product_files(".py")} == set(PACKAGES)


def test_the_environment_is_read_in_one_place() -> None:
    assert complaints(environment_reads, "relay/settings.py", "relay/settings/", "relay/devstack/") == []


def test_telemetry_libraries_stay_in_their_room() -> None:
    assert complaints(telemetry_imports, "relay/telemetry/") == []


def test_sql_statements_stay_in_the_postgres_adapter() -> None:
    elsewhere = ("chaos/", "tasks/", "consumer/", "scheduler/")
    assert complaints(sql_strings, "relay/adapters/postgres/", *elsewhere) == []


def test_sessions_of_ours_are_opened_in_one_place() -> None:
    beside = ("chaos/", "relay/devstack/", "relay/cli/demo/")
    assert complaints(plain_connections, "relay/adapters/postgres/pool.py", *beside) == []


def test_statements_call_the_rules_that_they_share() -> None:
    files = [path for path in product_files(".sql") if path.parent.name != "schema"]
    statements = [path for path in files if WRITTEN_OUT.search(path.read_text())]
    assert [path.name for path in statements] == []


@pytest.mark.parametrize(
    "text",
    [
        "WHERE (hashtext(partition_key) & 63) = 7",
        "SELECT pg_try_advisory_xact_lock(1785882987, lane)",
        "AND (earlier.generation = 0 OR e.generation > 0)",
        "CASE WHEN dead_letter_reason IS NULL AND attempts >= 20 THEN 'exhausted' END",
    ],
)
def test_a_rule_that_is_written_out_is_seen(text: str) -> None:
    assert WRITTEN_OUT.search(text)


def test_facts_stand_in_one_catalogue() -> None:
    assert complaints(facts, "relay/domain/facts.py") == []


def test_outages_are_told_with_what_to_do() -> None:
    assert complaints(outages_without_remedy) == []


def test_each_class_name_of_the_product_means_one_thing() -> None:
    """``chaos`` is a program of its own beside the product. ``sds047`` has the names of a document."""
    beside = {ROOT / "relay" / "sds047.py"}
    files = [it for it in product_files(".py") if it.relative_to(ROOT).parts[0] != "chaos" and it not in beside]
    places = defaultdict(list)
    for path in files:
        for name in classes(parsed(path)):
            places[name].append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_tests_wait_in_one_way() -> None:
    assert complaints_of_tests(own_waits, "tests/waiting.py") == []


def test_tests_have_one_clock() -> None:
    assert complaints_of_tests(own_clocks, "tests/clock.py") == []


def test_tests_give_values_and_patch_few_private_names() -> None:
    found = complaints_of_tests(private_patches)
    assert len(found) <= PATCHED, found


def test_words_that_people_read_are_asserted_in_one_place() -> None:
    """Other tests assert a code, a field or a figure, so that a sentence can be improved."""
    places = defaultdict(set)
    for name, path in files_of_tests().items():
        for words in asserted_words(parsed(path)):
            places[words].add(name)
    assert {words: sorted(found) for words, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (outages_without_remedy, "facts(OutageSeen(context=name, server='nats', error=error.message))"),
        (environment_reads, "import os\nhome = os.environ['HOME']"),
        (environment_reads, "import os\nhome = os.getenv('HOME')"),
        (environment_reads, "from os import environ"),
        (telemetry_imports, "import structlog"),
        (telemetry_imports, "def late():\n    from opentelemetry.trace import Span"),
        (plain_connections, "with psycopg.connect(url) as conn: ..."),
        (plain_connections, "conn = await psycopg.AsyncConnection.connect(url)"),
        (plain_connections, "conn = await asyncpg.connect(url)"),
        (plain_connections, "engine = create_engine(url)"),
        (plain_connections, "engine = sqlalchemy.create_engine(url, poolclass=NullPool)"),
        (facts, "class RowsArchived(Fact):\n    kind: str"),
        (facts, "class TaskFailed(TaskFact):\n    error: str"),
        (own_waits, "while not done():\n    assert time.monotonic() < end"),
        (own_waits, "while not done() and loop.time() < end:\n    pass"),
        (own_clocks, "class FakeClock:\n    now = 0"),
        (private_patches, "monkeypatch.setattr(module, '_LIMIT', 3)"),
        (private_patches, "patched.setattr('relay.ops.api.app._LIMIT', 3)"),
        (asserted_words, "assert shown == 'the outbox of sea is full'"),
        (asserted_words, "with pytest.raises(Refused, match='this message was requeued already'): ..."),
        (classes, "class One:\n    class Two: ..."),
        (sql_strings, "query = 'SELECT 1'"),
        (sql_strings, "query = '''\n  UPDATE outbox_events SET attempts = 0'''"),
        (sql_strings, "query = f'delete from {table}'"),
        (sql_strings, "query = 'with due as (select 1) select 2'"),
    ],
)
def test_each_rule_sees_its_breach(rule: Rule, text: str) -> None:
    assert list(rule(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    ["'''SELECT is what this docstring starts with.'''", "help = 'Select the context'", "help = 'update the row'"],
)
def test_prose_is_no_sql(text: str) -> None:
    assert not list(sql_strings(ast.parse(text)))
