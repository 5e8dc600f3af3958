"""Generates a page of deployment settings from the schema.

It contains the fields with their types, defaults and preceding comments.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from antiphon.deployment.schema import Deployment
from antiphon_tools.reference.http_page import field_type

_HEAD = """# Settings

The keys of a deployment's file, from its schema. Unknown keys and values out of range are errors at
start. [Serve on one host](../docs/serve.md) introduces the file. In the Helm chart,
`gateway.config` and `stages.ROLE.config` have the same keys.
"""


def settings_page() -> str:
    """Return a page with each group of settings, starting with the deployment."""
    kinds = _kinds(Deployment)
    _, components = msgspec.json.schema_components([Deployment])
    lines = [_HEAD]
    for kind in kinds:
        lines += [f"## {kind.__name__}\n", f"{inspect.getdoc(kind)}\n"]
        lines += _table(components[kind.__name__]["properties"], field_comments(kind))
    return "\n".join(lines)


def _kinds(root: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Return the structs of the schema, starting with the outermost one."""
    found = [root]
    for kind in found:
        for each in msgspec.structs.fields(kind):
            found += [inner for inner in _structs(each.type) if inner not in found]
    return found


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for each in getattr(kind, "__args__", ()):
        yield from _structs(each)


def _table(properties: dict[str, Any], comments: dict[str, str]) -> Iterator[str]:
    yield "| setting | type | default | meaning |\n|---|---|---|---|"
    for name, schema in properties.items():
        default = schema.get("default")
        # A group of settings has its own table.
        shown = "-" if isinstance(default, dict) and default else f"`{json.dumps(default)}`"
        meaning = comments.get(name, "").replace("|", "\\|")
        yield f"| `{name}` | {field_type(schema)} | {shown} | {meaning} |"
    yield ""


def field_comments(kind: type) -> dict[str, str]:
    """Return the comment that precedes each field.

    Fields without a comment of their own share the comment of the previous field.
    """
    comments: dict[str, str] = {}
    lines: list[str] = []
    in_field = False
    for line in map(str.strip, inspect.getsource(kind).splitlines()):
        if line.startswith("#"):
            lines = [] if in_field else lines
            lines.append(line.removeprefix("#").strip())
            in_field = False
        elif named := re.match(r"(\w+): ", line):
            comments[named[1]] = " ".join(lines)
            in_field = True
    return comments
