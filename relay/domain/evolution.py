"""What changes between two JSON Schemas of one event version, and who can no longer read what.

A version that is published is read in both directions: a new reader gets old messages, from streams and archives,
and during a deploy an old reader gets new ones. An error is what a new reader may refuse, or what a reader loses.
A warning is what only an old reader may refuse: deploy the readers first. A note harms nobody.

These are the schemas that pydantic makes. A keyword that is not known here must stay as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

#: Where a schema says what its class is registered as.
REGISTERED: Final = "x-relay"
#: Keywords that refuse no value.
_WORDS: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"}
    | {"$schema", "$id", "$comment", "$defs", REGISTERED}
)
_SHAPE: Final = frozenset({"type", "properties", "required", "additionalProperties", "items", "prefixItems"})
#: Limits of which a larger one refuses more, and those of which a smaller one does.
_LEAST: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"})
_MOST: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_VALUES: Final = frozenset({"enum", "const"})


class Weight(StrEnum):
    """How much a change harms. ``error``: new readers, or for good. ``warning``: old readers. ``note``: nobody."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class ChangeCode(StrEnum):
    """The kinds of changes. They are stable."""

    VERSION_REMOVED = "VERSION_REMOVED"
    VERSION_UPCAST = "VERSION_UPCAST"
    VERSION_ADDED = "VERSION_ADDED"
    DECLARED_TWICE = "DECLARED_TWICE"
    AGGREGATE_CHANGED = "AGGREGATE_CHANGED"
    PERSONAL_CHANGED = "PERSONAL_CHANGED"
    FIELD_REMOVED = "FIELD_REMOVED"
    FIELD_RENAMED = "FIELD_RENAMED"
    FIELD_REQUIRED = "FIELD_REQUIRED"
    FIELD_OPTIONAL = "FIELD_OPTIONAL"
    FIELD_ADDED = "FIELD_ADDED"
    TYPE_CHANGED = "TYPE_CHANGED"
    TYPE_WIDENED = "TYPE_WIDENED"
    ENUM_NARROWED = "ENUM_NARROWED"
    ENUM_WIDENED = "ENUM_WIDENED"
    LIMIT_NARROWED = "LIMIT_NARROWED"
    LIMIT_WIDENED = "LIMIT_WIDENED"
    WORDS_CHANGED = "WORDS_CHANGED"


class Version(NamedTuple):
    """A version of an event type, or of a command by its subject."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}.v{self.number}"


@dataclass(frozen=True, slots=True)
class Change:
    """One change. ``path``: the field, with dots; ``[]`` is each item of a list, ``{}`` each value of a map."""

    code: ChangeCode
    weight: Weight
    version: Version
    path: str
    text: str


Found: TypeAlias = tuple[ChangeCode, Weight, str, str]
#: The pairs of parts of two documents that are being compared, by their identities.
_Passed: TypeAlias = frozenset[tuple[int, int]]


def compare_catalogues(
    published: Mapping[Version, Schema], declared: Mapping[Version, Schema], reads: Callable[[Version], bool]
) -> Iterator[Change]:
    """Compare what is published with what is declared now. ``reads``: whether upcasters still read a version."""
    for version in sorted({*published, *declared}):
        old, new = published.get(version), declared.get(version)
        if new is None:
            if reads(version):
                said = "no class declares it; upcasters read it"
                yield Change(ChangeCode.VERSION_UPCAST, Weight.NOTE, version, "", said)
            else:
                said = "no class declares it, and no upcaster reads it"
                yield Change(ChangeCode.VERSION_REMOVED, Weight.ERROR, version, "", said)
        elif old is None:
            yield Change(ChangeCode.VERSION_ADDED, Weight.NOTE, version, "", "is not in the catalogue")
        else:
            for code, weight, path, text in compare(old, new):
                yield Change(code, weight, version, path, text)


def compare(old: Schema, new: Schema) -> Iterator[Found]:
    """Compare two schemas of one version."""
    was, now = old.get(REGISTERED, {}), new.get(REGISTERED, {})
    about = ("aggregate_type", "aggregate_id")
    if before := {name: was.get(name) for name in about if was.get(name) != now.get(name)}:
        text = ", ".join(f"{name}: {value!r} became {now.get(name)!r}" for name, value in before.items())
        yield ChangeCode.AGGREGATE_CHANGED, Weight.ERROR, "", f"{text}; the order of keys ends here"
    if was.get("personal") != now.get("personal"):
        text = "other fields are encrypted; services may get them as they are"
        yield ChangeCode.PERSONAL_CHANGED, Weight.WARNING, "", text
    found = list(_Comparison(old, new).changes(old, new, "", frozenset()))
    yield from found
    # What the walk over the fields has not seen, for example that a map may hold a field that is new.
    weights = {weight for _, weight, _, _ in found}
    if Weight.ERROR not in weights and not accepts(new, new, old, old):
        yield ChangeCode.TYPE_CHANGED, Weight.ERROR, "", "new readers may refuse old messages"
    elif not weights & {Weight.ERROR, Weight.WARNING} and not accepts(old, old, new, new):
        yield ChangeCode.TYPE_WIDENED, Weight.WARNING, "", "old readers may refuse new messages"


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The two documents, in which references are looked up."""

    old: Schema
    new: Schema

    def changes(self, old: Schema, new: Schema, path: str, passed: _Passed) -> Iterator[Found]:
        if (ids := (id(old), id(new))) in passed:
            return
        passed |= {ids}
        if (before := _words(old)) != (after := _words(new)):
            names = ", ".join(sorted(name for name in {*before, *after} if before.get(name) != after.get(name)))
            yield ChangeCode.WORDS_CHANGED, Weight.NOTE, path, f"{names} changed"
        olds, news = _alternatives(self.old, old), _alternatives(self.new, new)
        if len(olds) == len(news) == 2:  # optional values: the null is one alternative
            (a, null_before), (b, null_after) = _without_null(olds), _without_null(news)
            if null_before and null_after and a and b:
                yield from self._single(a[0], b[0], path, passed)
                return
        if len(olds) == len(news) == 1:
            yield from self._single(olds[0], news[0], path, passed)
        else:
            yield from self._leaf(old, new, path)

    def _single(self, old: Schema, new: Schema, path: str, passed: _Passed) -> Iterator[Found]:
        kinds = old.get("type"), new.get("type")
        if kinds == ("object", "object"):
            yield from self._objects(old, new, path, passed)
        elif kinds == ("array", "array") and "prefixItems" not in {*old, *new}:
            yield from self._leaf({**old, "items": {}}, {**new, "items": {}}, path)
            yield from self.changes(old.get("items", {}), new.get("items", {}), f"{path}[]", passed)
        else:
            yield from self._leaf(old, new, path)

    def _objects(self, old: Schema, new: Schema, path: str, passed: _Passed) -> Iterator[Found]:
        before, after = old.get("properties", {}), new.get("properties", {})
        if (pair := (id(before), id(after))) in passed:
            return  # a class that holds itself
        passed |= {pair}
        yield from self._fields(old, new, path)
        for name in before:
            if name in after:
                yield from self.changes(before[name], after[name], _join(path, name), passed)
        rest = "additionalProperties"
        values = old.get(rest, True), new.get(rest, True)
        if isinstance(values[0], Mapping) and isinstance(values[1], Mapping):
            yield from self.changes(values[0], values[1], f"{path}{{}}", passed)
            old, new = {**old, rest: {}}, {**new, rest: {}}
        yield from self._leaf(_bare(old), _bare(new), path)

    def _fields(self, old: Schema, new: Schema, path: str) -> Iterator[Found]:
        """Which fields an object has, and which it must have."""
        before, after = old.get("properties", {}), new.get("properties", {})
        needs = {*new.get("required", ())}
        removed, added = [it for it in before if it not in after], [it for it in after if it not in before]
        for name in removed:
            alike = [it for it in added if self._same(before[name], after[it])]
            if len(alike) == 1 and len(removed) == 1:
                added.remove(alike[0])
                yield ChangeCode.FIELD_RENAMED, Weight.ERROR, _join(path, name), f"is called {alike[0]} now"
            else:
                yield ChangeCode.FIELD_REMOVED, Weight.ERROR, _join(path, name), "is no longer written"
        forbids = old.get("additionalProperties", True) is False
        for name in added:
            if name in needs and not after[name].get("readOnly"):
                yield (
                    ChangeCode.FIELD_REQUIRED,
                    Weight.ERROR,
                    _join(path, name),
                    "is new, and old messages lack it",
                )
            else:
                text = "is new, and old readers forbid it" if forbids else "is new"
                yield ChangeCode.FIELD_ADDED, Weight.WARNING if forbids else Weight.NOTE, _join(path, name), text
        yield from self._needed(old, new, path)

    def _needed(self, old: Schema, new: Schema, path: str) -> Iterator[Found]:
        """Which fields of before and after must be there. Computed ones are not read."""
        before, after = old.get("properties", {}), new.get("properties", {})
        needed, needs = {*old.get("required", ())}, {*new.get("required", ())}
        for name in (it for it in before if it in after):
            if name in needs - needed and not after[name].get("readOnly"):
                text = "is required now, and old messages may lack it"
                yield ChangeCode.FIELD_REQUIRED, Weight.ERROR, _join(path, name), text
            if name in needed - needs and not before[name].get("readOnly"):
                text = "may be absent now, and old readers need it"
                yield ChangeCode.FIELD_OPTIONAL, Weight.WARNING, _join(path, name), text

    def _same(self, old: Schema, new: Schema) -> bool:
        return accepts(self.new, new, self.old, old) and accepts(self.old, old, self.new, new)

    def _leaf(self, old: Schema, new: Schema, path: str) -> Iterator[Found]:
        narrowed = not accepts(self.new, new, self.old, old)
        widened = not accepts(self.old, old, self.new, new)
        if not narrowed and not widened:
            return
        olds, news = _alternatives(self.old, old), _alternatives(self.new, new)
        changed, wider = _codes(olds, news)
        if narrowed:
            text = f"{_shown(olds)} became {_shown(news)}: new readers may refuse old messages"
            yield changed, Weight.ERROR, path, text
        else:
            text = f"{_shown(olds)} became {_shown(news)}: old readers may refuse new messages"
            yield wider, Weight.WARNING, path, text


def accepts(reads: Schema, reader: Schema, writes: Schema, writer: Schema) -> bool:
    """Whether a reader takes every value of a writer; False if that is not sure.

    ``reads``, ``writes``: the documents, in which references are looked up. A reader passes over fields that it
    does not know, unless it forbids them, and computed fields. A writer writes only the fields that it names; one
    that allows others writes none that only the reader names.
    """
    return _accepts(reads, reader, writes, writer, frozenset())


def _accepts(reads: Schema, reader: Schema, writes: Schema, writer: Schema, passed: _Passed) -> bool:
    if (pair := (id(reader), id(writer))) in passed:
        return True  # a class that holds itself
    passed |= {pair}
    readers = _alternatives(reads, reader)
    return all(any(_takes(reads, r, writes, w, passed) for r in readers) for w in _alternatives(writes, writer))


def _takes(reads: Schema, reader: Schema, writes: Schema, writer: Schema, passed: _Passed) -> bool:
    asked = {name for name in reader if name not in _WORDS}
    if not asked:
        return True
    values = _values(writer)
    if values is not None:
        return all(_takes_value(reader, it) for it in values)
    if asked & _VALUES or not _takes_type(reader.get("type"), writer.get("type")):
        return False
    if not all(_takes_limit(name, reader, writer) for name in asked - _SHAPE):
        return False

    def inner(r: Any, w: Any) -> bool:
        if r is True or r == {}:
            return True
        if isinstance(r, bool) or isinstance(w, bool):
            return w is False
        return _accepts(reads, r, writes, w, passed)

    if reader.get("type") == "array":
        return _takes_items(reader, writer, inner)
    return reader.get("type") != "object" or _takes_fields(reader, writer, inner)


def _takes_items(reader: Schema, writer: Schema, inner: Callable[[Any, Any], bool]) -> bool:
    first, given = reader.get("prefixItems", []), writer.get("prefixItems", [])
    if len(first) != len(given) or not all(map(inner, first, given)):
        return False
    # Behind a full list of first items there is nothing.
    full = given and writer.get("maxItems", float("inf")) <= len(given)
    return bool(full) or inner(reader.get("items", True), writer.get("items", {}))


def _takes_fields(reader: Schema, writer: Schema, inner: Callable[[Any, Any], bool]) -> bool:
    known, written = reader.get("properties", {}), writer.get("properties", {})
    for name in reader.get("required", ()):
        if name not in writer.get("required", ()) and not known.get(name, {}).get("readOnly"):
            return False
    rest, others = reader.get("additionalProperties", True), writer.get("additionalProperties", False)
    if not all(inner(known.get(name, rest), it) for name, it in written.items()):
        return False
    if others is False:
        return True
    if others is True:
        return inner(rest, {})
    # A map may have any name, also one that only the reader knows.
    return inner(rest, others) and all(inner(it, others) for name, it in known.items() if name not in written)


def _takes_value(reader: Schema, value: Any) -> bool:
    values = _values(reader)
    if values is not None:
        return any(type(it) is type(value) and it == value for it in values)
    limits = {name for name in reader if name not in _WORDS} - {"type"}
    return not limits and _takes_type(reader.get("type"), _type_of(value))


def _takes_type(reader: Any, writer: Any) -> bool:
    return reader is None or reader == writer or (reader == "number" and writer == "integer")


def _takes_limit(name: str, reader: Schema, writer: Schema) -> bool:
    if name not in writer:
        return False
    mine, theirs = reader[name], writer[name]
    if name in _LEAST:
        return bool(theirs >= mine)
    if name in _MOST:
        return bool(theirs <= mine)
    return bool(mine == theirs) and "$ref" not in str(mine)


def _alternatives(document: Schema, schema: Schema) -> list[Schema]:
    """The alternatives of a schema, without references and with one type each."""
    schema = _resolved(document, schema)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            others = {name for name in schema if name not in _WORDS} - {keyword}
            if not others:
                return [one for it in schema[keyword] for one in _alternatives(document, it)]
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [{**schema, "type": it} for it in kinds]
    return [schema]


def _resolved(document: Schema, schema: Schema) -> Schema:
    for _ in range(100):  # a reference to itself is no schema; it stays as it is
        if "$ref" in schema:
            found: Any = document
            for part in str(schema["$ref"]).removeprefix("#/").split("/"):
                found = found.get(part.replace("~1", "/").replace("~0", "~"), {})
            schema = {**found, **{name: it for name, it in schema.items() if name != "$ref"}}
        elif isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
            schema = {**schema["allOf"][0], **{name: it for name, it in schema.items() if name != "allOf"}}
        else:
            break
    return schema


def _without_null(alternatives: list[Schema]) -> tuple[list[Schema], bool]:
    kept = [it for it in alternatives if it.get("type") != "null"]
    return kept, len(kept) < len(alternatives)


def _bare(schema: Schema) -> Schema:
    return {name: it for name, it in schema.items() if name not in ("properties", "required")}


def _words(schema: Schema) -> Mapping[str, Any]:
    return {name: schema[name] for name in ("description", "default", "deprecated") if name in schema}


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _codes(olds: list[Schema], news: list[Schema]) -> tuple[ChangeCode, ChangeCode]:
    """How a change of a value is called: if it takes some away, and if it only adds some."""
    one = [it[0] for it in (_without_null(it)[0] for it in (olds, news)) if len(it) == 1]
    if len(one) == 2:
        old, new = one
        if _values(old) is not None or _values(new) is not None:
            return ChangeCode.ENUM_NARROWED, ChangeCode.ENUM_WIDENED
        if old.get("type") == new.get("type") and _limits(old) != _limits(new):
            return ChangeCode.LIMIT_NARROWED, ChangeCode.LIMIT_WIDENED
    elif all(_values(it) is not None for it in (*olds, *news)):
        return ChangeCode.ENUM_NARROWED, ChangeCode.ENUM_WIDENED
    return ChangeCode.TYPE_CHANGED, ChangeCode.TYPE_WIDENED


def _limits(schema: Schema) -> Mapping[str, Any]:
    return {name: it for name, it in schema.items() if name not in _WORDS | _SHAPE | _VALUES}


def _shown(alternatives: list[Schema]) -> str:
    return " or ".join(_one(it) for it in alternatives)[:200]


def _one(schema: Schema) -> str:
    values = _values(schema)
    if values is not None:
        return "one of " + ", ".join(map(str, values))
    limits = ", ".join(f"{name} {it}" for name, it in _limits(schema).items() if not isinstance(it, dict | list))
    return str(schema.get("type", "anything")) + (f" ({limits})" if limits else "")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
