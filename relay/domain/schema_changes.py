"""What the change of a JSON Schema means for messages: minor, or breaking (SR-MESSAGE-CONTRACTS §7).

While a version is in use, readers of the old and of the new schema meet messages of both. A change is minor if all
of them read all of these. So an optional field may be added or removed, because unknown fields are ignored. If a
known field may have fewer values, new readers refuse old messages. If it may have more, old readers refuse new
messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from relay.domain.errors import InvalidRequest

_OLD: Final = "old readers refuse new messages"
_NEW: Final = "new readers refuse old messages"
_BOTH: Final = "readers of each refuse messages of the other"
#: Keywords that say nothing about which messages are valid.
_NOTES: Final = frozenset(
    {
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "$anchor",
        "title",
        "description",
        "examples",
        "default",
    }
    | {"deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding"}
)
_DEFINITIONS: Final = ("$defs", "definitions")
#: Keywords that hold schemas by names of the author's choice, and keywords with plain values.
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
_PLAIN: Final = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired"})
#: Keywords, beside ``additionalProperties``, that may refuse a field which is not listed.
_GUARDS: Final = frozenset({"unevaluatedProperties", "propertyNames", "maxProperties"})
#: Ways to refer to a schema that depend on more than the two files say at one place.
_FAR: Final = ("$dynamicRef", "$recursiveRef")
#: Keywords with a limit: +1 if a larger value allows less, -1 if it allows more.
_LIMITS: Final = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), 1),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), -1),
}
_COMPARED: Final = (
    "properties",
    "required",
    "additionalProperties",
    "type",
    "enum",
    "const",
    "items",
    "prefixItems",
)
_ANY: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_Schema: TypeAlias = dict[str, Any]


class Change(NamedTuple):
    """One difference. ``field``: the path to it, dots between its parts; "" for the whole message."""

    field: str
    said: str
    breaking: bool

    @property
    def kind(self) -> str:
        """``breaking`` or ``minor``."""
        return "breaking" if self.breaking else "minor"


def changes(old: Any, new: Any) -> list[Change]:
    """The differences of two schemas, breaking ones first.

    Raises InvalidRequest for a reference that does not lead to a place in the same schema (``#/$defs/NAME``).
    """
    found = dict.fromkeys(_compare("", _whole(old, old), _whole(new, new)))
    return sorted(found, key=lambda change: (not change.breaking, change.field))


def _whole(schema: Any, root: Any, within: frozenset[str] = frozenset()) -> Any:
    """A schema with its references replaced by their targets. A reference to a schema that contains it stays."""
    if isinstance(schema, list):
        return [_whole(item, root, within) for item in schema]
    if not isinstance(schema, dict):
        return schema
    for keyword in _FAR:
        if keyword in schema:
            raise _unknown_place(f"{keyword} {schema[keyword]}")
    parts = {key: _part(key, value, root, within) for key, value in schema.items() if key not in _DEFINITIONS}
    reference = parts.get("$ref")
    if not isinstance(reference, str) or reference in within:
        return parts
    del parts["$ref"]
    return _both(_whole(_target(reference, root), root, within | {reference}), parts)


def _part(keyword: str, value: Any, root: Any, within: frozenset[str]) -> Any:
    if keyword in _NAMED and isinstance(value, dict):
        return {name: _whole(schema, root, within) for name, schema in value.items()}
    return value if keyword in _PLAIN else _whole(value, root, within)


def _both(target: Any, beside: _Schema) -> Any:
    """One schema that asks for what a reference's target and the keywords beside the reference ask for."""
    if not isinstance(target, dict):
        return beside if target is True else target
    merged = {**target, **beside}
    for keyword in (target.keys() & beside.keys()) - _NOTES:
        one, other = target[keyword], beside[keyword]
        if keyword == "required":
            merged[keyword] = [*one, *other]
        elif keyword == "properties" and not one.keys() & other.keys():
            merged[keyword] = {**one, **other}
        elif one != other:
            return {**beside, "allOf": [target, *beside.get("allOf", ())]}
    return merged


def _target(reference: str, root: Any) -> Any:
    """The schema at a place such as ``#/$defs/tag`` (RFC 6901)."""
    place, *parts = unquote(reference).split("/")
    if place != "#":
        raise _unknown_place(f"$ref {reference}")
    found = root
    for part in parts:
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name) if isinstance(found, list) else name]
        except (LookupError, TypeError, ValueError):
            raise _unknown_place(f"$ref {reference}") from None
    return found


def _unknown_place(reference: str) -> InvalidRequest:
    hint = "write it as $ref #/$defs/NAME, with the schema at that place of the same file"
    return InvalidRequest(f"cannot follow {reference[:80]!r}", field="schema", hint=hint)


def _compare(field: str, old: Any, new: Any) -> Iterator[Change]:
    if old == new:
        return
    # The schemas true and {} take anything.
    old, new = ({} if side is True else side for side in (old, new))
    if not isinstance(old, dict) or not isinstance(new, dict):
        yield _breaks(
            field, "nothing is valid " + ("now" if new is False else "before"), _NEW if new is False else _OLD
        )
        return
    for compare in (_type, _values, _limits, _rest, _unknown, _fields, _items):
        yield from compare(field, old, new)


def _breaks(field: str, said: str, why: str) -> Change:
    return Change(field, f"{said}: {why}", breaking=True)


def _type(field: str, old: _Schema, new: _Schema) -> Iterator[Change]:
    before, after = _types(old), _types(new)
    if before != after:
        had, has = _covered(before), _covered(after)
        why = _direction(narrower=has < had, wider=had < has)
        yield _breaks(field, f"type {'/'.join(sorted(before))} is {'/'.join(sorted(after))}", why)


def _types(side: _Schema) -> frozenset[str]:
    said = side.get("type", "any")
    return frozenset(said) if isinstance(said, list) else frozenset([said])


def _covered(types: frozenset[str]) -> frozenset[str]:
    """The types of values that are allowed: whole numbers are numbers, too."""
    if "any" in types:
        return _ANY
    return types | {"integer"} if "number" in types else types


def _direction(*, narrower: bool, wider: bool) -> str:
    return _NEW if narrower else _OLD if wider else _BOTH


def _values(field: str, old: _Schema, new: _Schema) -> Iterator[Change]:
    """Compare ``enum`` and ``const``, which is an enum of one."""
    before, after = _allowed(old), _allowed(new)
    if before == after:
        return
    if before is None or after is None:
        yield _breaks(field, "its values are " + ("a list now" if after else "free now"), _NEW if after else _OLD)
        return
    gone, come = before - after, after - before
    if gone or come:
        said = [f"{value} is gone" for value in sorted(gone)] + [f"{value} is new" for value in sorted(come)]
        yield _breaks(field, ", ".join(said), _direction(narrower=not come, wider=not gone))


def _allowed(side: _Schema) -> frozenset[str] | None:
    if "const" in side:
        return frozenset([repr(side.get("const"))])
    return frozenset(map(repr, side["enum"])) if "enum" in side else None


def _limits(field: str, old: _Schema, new: _Schema) -> Iterator[Change]:
    for keyword, sign in _LIMITS.items():
        before, after = old.get(keyword), new.get(keyword)
        if before == after:
            continue
        narrower = before is None or (after is not None and (after - before) * sign > 0)
        said = f"{keyword} {'none' if before is None else before} is {'none' if after is None else after}"
        yield _breaks(field, said, _NEW if narrower else _OLD)


def _rest(field: str, old: _Schema, new: _Schema) -> Iterator[Change]:
    """Compare the other keywords: a new one makes the new schema stricter, a removed one the old schema."""
    known = {*_NOTES, *_LIMITS, *_COMPARED}
    for keyword in sorted((old.keys() | new.keys()) - known):
        if old.get(keyword) != new.get(keyword):
            why = _direction(narrower=keyword not in old, wider=keyword not in new)
            yield _breaks(field, f"{keyword} is another", why)


def _unknown(field: str, old: _Schema, new: _Schema) -> Iterator[Change]:
    """Compare what happens to fields that are not listed."""
    before, after = old.get("additionalProperties", True), new.get("additionalProperties", True)
    if before is False and after is True:
        yield _breaks(field, "unknown fields are ignored now", _OLD)
    elif before is True and after is False:
        yield _breaks(field, "unknown fields are refused now", _NEW)
    elif before != after:
        yield _breaks(field, "the schema of unknown fields is another", _BOTH)


def _fields(field: str, old: _Schema, new: _Schema) -> Iterator[Change]:
    before, after = old.get("properties", {}), new.get("properties", {})
    had, has = frozenset(old.get("required", ())), frozenset(new.get("required", ()))
    for name in sorted(has - had):
        yield _breaks(_path(field, name), "is required now", _NEW)
    for name in sorted(had - has):
        yield _breaks(_path(field, name), "is optional now" if name in after else "is gone", _OLD)
    for name in sorted(after.keys() - before.keys() - has):
        yield _optional(_path(field, name), "is a new optional field", _OLD if _closed(old, name) else None)
    for name in sorted(before.keys() - after.keys() - had):
        yield _optional(_path(field, name), "is no field any more", _NEW if _closed(new, name) else None)
    for name in sorted((before.keys() | had) & (after.keys() | has)):
        yield from _compare(_path(field, name), before.get(name, {}), after.get(name, {}))


def _closed(schema: _Schema, name: str) -> bool:
    """Whether a schema may refuse a field that it does not list."""
    if schema.get("additionalProperties", True) not in (True, {}) or _GUARDS & schema.keys():
        return True
    return any(_may_match(pattern, name) for pattern in schema.get("patternProperties", ()))


def _may_match(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # its dialect of patterns is not Python's
        return True


def _optional(field: str, said: str, why: str | None) -> Change:
    return Change(field, said, breaking=False) if why is None else _breaks(field, said, why)


def _items(field: str, old: _Schema, new: _Schema) -> Iterator[Change]:
    yield from _compare(f"{field}[]", old.get("items", True), new.get("items", True))
    if old.get("prefixItems") != new.get("prefixItems"):
        yield _breaks(field, "the first items have other schemas", _BOTH)


def _path(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
