"""Generates the HTTP endpoint reference from the OpenAPI document that a gateway serves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from antiphon_gateway.endpoints.openai.openapi import OpenApi
from antiphon_gateway.server import HTTP_ENDPOINTS

Json = Mapping[str, Any]

_HEAD = """# HTTP reference

The endpoints of a gateway and the fields that they read and write, from its OpenAPI document
(`/openapi.json`). A running gateway also has a field for the sampling of each stage that samples,
such as `talker`. [HTTP endpoints](../docs/http.md) introduces them.
"""


def http_page() -> str:
    """Return a page that describes all objects and each endpoint with its requests and
    responses.
    """
    document = json.loads(OpenApi(HTTP_ENDPOINTS, "ignore").document(()))
    kinds = document["components"]["schemas"]
    parts = [_HEAD, document["info"]["description"], ""]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(f"{method.upper()} {path}", operation)
    for name, kind in sorted(kinds.items()):
        parts += _kind(name, kind)
    return "\n".join(parts)


def _operation(title: str, operation: Json) -> Iterator[str]:
    yield f"## {title}\n\n{operation['summary']}\n"
    for each in operation.get("parameters", ()):
        required = "required" if each["required"] else "optional"
        kind = field_type(each["schema"])
        yield f"- parameter `{each['name']}` ({each['in']}, {required}): {kind}"
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"- body, `{media_type}`: {field_type(content['schema'])}"
    for media_type, content in operation["responses"]["200"]["content"].items():
        described = field_type(content["schema"]) if content else "no schema"
        yield f"- answer, `{media_type}`: {described}"
    yield ""


def _kind(name: str, kind: Json) -> Iterator[str]:
    yield f"## {name}\n"
    if described := kind.get("description"):
        yield f"{described}\n"
    yield from kind_table(kind)


def kind_table(kind: Json) -> Iterator[str]:
    """Yield a table of the fields in an object's JSON schema."""
    properties: Json = kind.get("properties", {})
    if not properties:
        yield f"{field_type(kind)}\n" if "enum" in kind else ""
        return
    yield "| field | type | default |\n|---|---|---|"
    for field, schema in properties.items():
        default = f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
        if field in kind.get("required", ()):
            default = "required"
        yield f"| `{field}` | {field_type(schema)} | {default} |"
    yield ""


_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} elements",
    "maxItems": "at most {} elements",
    "maxProperties": "at most {} entries",
    "pattern": "matches `{}`",
}


def field_type(schema: Json) -> str:
    """Describe a JSON schema in the cell of a table."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(field_type, schema["anyOf"]))
    kind = schema.get("format") or schema.get("type", "any")
    if kind == "array":
        elements = schema.get("items") or {}
        kind = f"array of {field_type(elements)}" if elements else "array"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        kind = f"object with values: {field_type(schema['additionalProperties'])}"
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    return ", ".join([kind, *bounds]).replace("|", "\\|")
