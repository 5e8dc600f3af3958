"""Renders the OpenAPI document as a web page. It contains no scripts, and loads nothing from other
servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import msgspec

from antiphon_gateway.endpoints.http.request_examples import curl_example

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_STYLE = """
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere;
       color: light-dark(#1b1f24, #e8eaed); background: light-dark(#ffffff, #15181c); }
a { color: light-dark(#1f5fc8, #79a8f5); }
code { font-family: ui-monospace, monospace; }
pre { padding: .5rem .75rem; white-space: pre-wrap; border-radius: .5rem;
      background: light-dark(#f3f5f8, #1f242a); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0;
         border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
summary { cursor: pointer; padding: .25rem 0; }
""".strip()


def reference_page(document: bytes) -> bytes:
    """Return the page as HTML."""
    api = msgspec.json.decode(document)
    title = escape(api["info"]["title"])
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}: HTTP reference</title><style>{_STYLE}</style></head>"
        f"<body><header><h1>{title} {escape(api['info']['version'])}</h1>"
        '<p>The document that this page shows: <a href="/openapi.json">/openapi.json</a>.</p>'
        "</header><main>"
    ]
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            parts += _operation(method, path, operation)
    parts.append("<h2>Messages</h2>")
    for name, schema in api["components"]["schemas"].items():
        parts += _message(name, schema)
    parts.append("</main></body></html>")
    return "".join(parts).encode()


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>"
    yield f"<p>{escape(operation['summary'])}</p><ul>"
    for parameter in operation.get("parameters", ()):
        needed = "" if parameter["required"] else ", may be left out"
        yield f"<li><code>{escape(parameter['name'])}</code> in the {parameter['in']}{needed}</li>"
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<li>Body, {escape(media_type)}: {_type(content['schema'])}</li>"
    for status, response in operation["responses"].items():
        for media_type, content in response["content"].items():
            shown = f": {_type(content['schema'])}" if "schema" in content else ""
            yield f"<li>{escape(status)}, {escape(media_type)}{shown}</li>"
    yield "</ul>"
    if example := curl_example(method, path):
        yield f"<pre><code>{escape(example)}</code></pre>"
    yield "</section>"


def _message(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f'<details id="{escape(name)}" open><summary><code>{escape(name)}</code></summary>'
    yield f"<p>{escape(schema.get('description', ''))}</p><table><thead><tr>"
    yield '<th scope="col">Field</th><th scope="col">Type</th><th scope="col">Default</th>'
    yield "</tr></thead><tbody>"
    required = schema.get("required", ())
    for field, described in schema.get("properties", {}).items():
        default = "required" if field in required else _default(described)
        yield f'<tr><th scope="row"><code>{escape(field)}</code></th>'
        yield f"<td>{_type(described)}</td><td>{default}</td></tr>"
    yield "</tbody></table></details>"


def _default(described: Mapping[str, Any]) -> str:
    if "default" not in described:
        return "left out"
    return f"<code>{escape(msgspec.json.encode(described['default']).decode())}</code>"


def _type(schema: Mapping[str, Any]) -> str:
    """Return a short description of a type, with links to messages."""
    if reference := schema.get("$ref"):
        name = escape(reference.rsplit("/", 1)[1])
        return f'<a href="#{name}"><code>{name}</code></a>'
    if choices := schema.get("anyOf"):
        return " or ".join(map(_type, choices))
    if "enum" in schema:
        return ", ".join(
            f"<code>{escape(msgspec.json.encode(each).decode())}</code>" for each in schema["enum"]
        )
    kind = escape(str(schema.get("type", "anything")))
    inner = schema.get("items") or schema.get("additionalProperties")
    return f"{kind} of {_type(inner)}" if isinstance(inner, dict) and inner else kind
