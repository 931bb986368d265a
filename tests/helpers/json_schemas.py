"""What of a JSON schema a value breaks: as much of draft 2020-12 as is generated."""

import re
from collections.abc import Iterator

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}

KNOWN = {
    *("$ref", "$defs", "$schema", "title", "description", "default", "type", "enum"),
    *("anyOf", "properties", "required", "additionalProperties", "items", "pattern"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "maxLength"),
    *("minItems", "maxItems", "minLength"),
}


def broken(value, schema, root=None, place="$") -> Iterator[str]:
    """A phrase for each rule of *schema* that *value* breaks."""
    root = root or schema
    assert schema.keys() <= KNOWN, schema.keys() - KNOWN
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield from broken(value, root["$defs"][name], root, place)
    if "anyOf" in schema and all(
        any(broken(value, each, root, place)) for each in schema["anyOf"]
    ):
        yield f"{place}: {value!r} is none of anyOf"
    kind = schema.get("type")
    if kind and not _is(value, kind):
        yield f"{place}: {value!r} is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r} is not in {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{place}: {value!r} does not match"
    yield from _bounds(value, schema, place)
    if isinstance(value, dict):
        yield from _members(value, schema, root, place)
    if isinstance(value, list):
        for at, each in enumerate(value):
            yield from broken(each, schema.get("items", {}), root, f"{place}[{at}]")


def _is(value, kind) -> bool:
    is_flag = isinstance(value, bool)
    return isinstance(value, TYPES[kind]) and is_flag == (kind == "boolean")


def _bounds(value, schema, place) -> Iterator[str]:
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{place}: {value!r} is below {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        yield f"{place}: {value!r} is above {schema['maximum']}"


def _members(value, schema, root, place) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{place}: lacks {name}"
    for name, each in value.items():
        more = schema.get("additionalProperties", {})
        rule = properties.get(name, more if more is not True else {})
        if rule is False:
            yield f"{place}: {name} is unknown"
        else:
            yield from broken(each, rule, root, f"{place}.{name}")
