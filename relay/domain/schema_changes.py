"""What the change of a JSON Schema means for messages: minor, or breaking (SR-MESSAGE-CONTRACTS §7).

While a version is in use, readers of the old and of the new schema meet messages of both. A change is minor if all
of them read all of these. So an optional field may come or go, as unknown fields are ignored. If a known field may
have fewer values, new readers refuse old messages. If it may have more, old readers refuse new messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

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
    """The differences of two schemas, breaking ones first."""
    found = dict.fromkeys(_compare("", _whole(old, old), _whole(new, new)))
    return sorted(found, key=lambda change: (not change.breaking, change.field))


def _whole(schema: Any, root: Any, within: frozenset[str] = frozenset()) -> Any:
    """A schema with what its local references point at. A reference to what it is itself part of stays."""
    if isinstance(schema, list):
        return [_whole(item, root, within) for item in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#") or reference in within:
        return {key: _whole(value, root, within) for key, value in schema.items() if key not in _DEFINITIONS}
    target = _whole(_target(reference, root), root, within | {reference})
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**target, **_whole(rest, root, within)} if isinstance(target, dict) else target


def _target(reference: str, root: Any) -> Any:
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, dict) else None
    return root


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
        why = _direction(narrower=after < before, wider=before < after)
        yield _breaks(field, f"type {'/'.join(sorted(before))} is {'/'.join(sorted(after))}", why)


def _types(side: _Schema) -> frozenset[str]:
    said = side.get("type", "any")
    return frozenset(said) if isinstance(said, list) else frozenset([said])


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
    """Compare the other keywords: a new one allows less, one that is gone allowed less."""
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
        yield _optional(_path(field, name), "is a new optional field", _OLD if _closed(old) else None)
    for name in sorted(before.keys() - after.keys() - had):
        yield _optional(_path(field, name), "is no field any more", _NEW if _closed(new) else None)
    for name in sorted((before.keys() | had) & (after.keys() | has)):
        yield from _compare(_path(field, name), before.get(name, {}), after.get(name, {}))


def _closed(schema: _Schema) -> bool:
    return schema.get("additionalProperties", True) is False


def _optional(field: str, said: str, why: str | None) -> Change:
    return Change(field, said, breaking=False) if why is None else _breaks(field, said, why)


def _items(field: str, old: _Schema, new: _Schema) -> Iterator[Change]:
    yield from _compare(f"{field}[]", old.get("items", True), new.get("items", True))
    if old.get("prefixItems") != new.get("prefixItems"):
        yield _breaks(field, "the first items have other schemas", _BOTH)


def _path(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
