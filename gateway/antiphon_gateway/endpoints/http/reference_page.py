"""Renders the OpenAPI document and the realtime events as a web page.

Requests can be sent from the page using a script that the gateway provides. The page doesn't load
anything from other servers. Without the script, only the request forms are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import msgspec

from antiphon_gateway.endpoints.http.form_body import FORM

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; "
    # The kinds of answers to requests sent from the page, which are JSON, speech and images.
    "connect-src 'self'; media-src blob:; img-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_STYLE = """
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere;
       color: light-dark(#1b1f24, #e8eaed); background: light-dark(#ffffff, #15181c); }
a { color: light-dark(#1f5fc8, #79a8f5); }
code { font-family: ui-monospace, monospace; font-size: .875rem; }
pre { padding: .5rem .75rem; white-space: pre-wrap; border-radius: .5rem;
      background: light-dark(#f3f5f8, #1f242a); }
.response pre { max-height: 30rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0;
         border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
summary { cursor: pointer; padding: .25rem 0; }
h3 { margin-bottom: 0; }
label { display: block; margin: .5rem 0; }
input, select, button, textarea { font: inherit; color: inherit; padding: .375rem .75rem;
       max-width: 100%; border: 1px solid light-dark(#6b7683, #8b949e); border-radius: .5rem;
       background: light-dark(#f3f5f8, #1f242a); }
label > input, label > select { display: block; width: 24rem; }
textarea { display: block; width: 100%; resize: vertical;
           font: .875rem/1.5 ui-monospace, monospace; }
button { cursor: pointer; }
button:disabled { cursor: default; opacity: .5; }
audio, img { display: block; max-width: 100%; margin: .5rem 0; }
:focus-visible { outline: 3px solid light-dark(#1f5fc8, #79a8f5); outline-offset: 2px; }
""".strip()
_FEWEST_ROWS = 3
_REALTIME = "realtime."


@dataclass(frozen=True, slots=True)
class ReferenceEvent:
    """An event of the realtime API. `fields` is its JSON schema, or None for server events."""

    type: str
    description: str
    example: Mapping[str, Any]
    fields: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EventReference:
    """The events of the realtime API. `objects` contains the JSON schemas of the objects in client
    events, by name.
    """

    client: Sequence[ReferenceEvent]
    objects: Mapping[str, Mapping[str, Any]]
    server: Sequence[ReferenceEvent]


def reference_page(document: bytes, events: EventReference) -> bytes:
    """Return the page as HTML."""
    api = msgspec.json.decode(document)
    title = escape(api["info"]["title"])
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}: API reference</title><style>{_STYLE}</style>"
        '<link rel="icon" href="page/icon.svg" type="image/svg+xml">'
        '<script type="module" src="page/reference.js"></script></head>'
        f"<body><header><h1>{title} {escape(api['info']['version'])}</h1>"
        '<p>The document of the HTTP endpoints: <a href="/openapi.json">/openapi.json</a>. '
        f"{escape(api['info']['description']).replace('`', '')}</p>"
        '<nav aria-label="Contents"><a href="#endpoints">HTTP endpoints</a>, '
        '<a href="#messages">messages</a>, <a href="#events">realtime events</a>, '
        '<a href="#objects">objects of realtime events</a></nav>'
        '<form id="access" hidden autocomplete="off"><label>API key, if the gateway requires one '
        '<input id="key" type="password" autocomplete="off"></label></form></header><main>',
        '<h2 id="endpoints">HTTP endpoints</h2>',
    ]
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            parts += _operation(method, path, operation)
    parts.append('<h2 id="messages">Messages</h2>')
    for name, schema in api["components"]["schemas"].items():
        parts += _message(name, schema)
    parts += _events(events)
    parts.append("</main></body></html>")
    return "".join(parts).encode()


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section><h3><code>{method.upper()} {escape(path)}</code></h3>"
    yield f"<p>{escape(operation['summary'])}</p><ul>"
    for parameter in operation.get("parameters", ()):
        needed = "" if parameter["required"] else ", optional"
        yield f"<li><code>{escape(parameter['name'])}</code> in the {parameter['in']}{needed}</li>"
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<li>Body, {escape(media_type)}: {_type(content['schema'])}</li>"
    for status, response in operation["responses"].items():
        for media_type, content in response["content"].items():
            shown = f": {_type(content['schema'])}" if "schema" in content else ""
            yield f"<li>{escape(status)}, {escape(media_type)}{shown}</li>"
    yield "</ul>"
    yield f"<pre><code>{escape(_curl(method, path, _body(operation)))}</code></pre>"
    yield from _try(method, path, operation)
    yield "</section>"


def _body(operation: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the media type of the request's body and an example of its fields. Both are empty for
    requests without a body.
    """
    content = operation.get("requestBody", {}).get("content", {})
    return next(((kind, each.get("example", {})) for kind, each in content.items()), ("", {}))


def _curl(method: str, path: str, body: tuple[str, Mapping[str, Any]]) -> str:
    """Return the command for a local server without API keys."""
    (media_type, example), lines = body, [f"curl http://localhost:8000{_filled(path)}"]
    if media_type == FORM:
        lines += [f"-F {name}={value}" for name, value in example.items()]
    elif media_type:
        lines += [f"-H 'content-type: {media_type}'", f"-d '{_indented(example)}'"]
    return " \\\n  ".join(lines)


def _filled(path: str) -> str:
    return path.replace("{name}", "MODEL")


def _indented(example: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(example), indent=2).decode()


def _try(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    """Return a form for the request. It is shown by the script."""
    media_type, example = _body(operation)
    kind = "form" if media_type == FORM else "json"
    yield "<details hidden><summary>Try it</summary>"
    yield f'<form class="try" autocomplete="off" data-method="{method}"'
    yield f' data-path="{escape(path)}" data-kind="{kind}">'
    if method == "get":
        for parameter in operation.get("parameters", ()):
            yield from _parameter_input(parameter)
    elif kind == "json":
        body = _indented(example)
        rows = max(_FEWEST_ROWS, body.count("\n") + 1)
        yield f'<label>Body <textarea name="body" rows="{rows}" spellcheck="false">'
        yield f"{escape(body)}</textarea></label>"
    else:
        yield from _form_inputs(example)
    yield '<button type="submit">Send</button> '
    yield '<button type="button" class="stop" disabled>Stop</button>'
    yield '<div class="response" hidden><p role="status"></p></div></form></details>'


def _parameter_input(parameter: Mapping[str, Any]) -> Iterator[str]:
    name = escape(parameter["name"])
    if choices := parameter["schema"].get("enum"):
        options = "".join(f"<option>{escape(each)}</option>" for each in ("", *choices))
        yield f'<label>{name} <select name="{name}">{options}</select></label>'
        return
    given = ' value="MODEL" required' if parameter["required"] else ""
    yield f'<label>{name} <input name="{name}"{given}></label>'


def _form_inputs(example: Mapping[str, str]) -> Iterator[str]:
    for name, value in example.items():
        given = 'type="file"' if value.startswith("@") else f'value="{escape(value)}"'
        yield f'<label>{escape(name)} <input name="{escape(name)}" {given} required></label>'


def _message(name: str, schema: Mapping[str, Any], anchors: str = "") -> Iterator[str]:
    """Return the fields of an object. `anchors` is the ID prefix of the objects that it links
    to.
    """
    yield f'<details id="{anchors}{escape(name)}" open>'
    yield f"<summary><code>{escape(name)}</code></summary>"
    yield f"<p>{escape(schema.get('description', ''))}</p>"
    yield from _fields(schema, anchors)
    yield "</details>"


def _fields(schema: Mapping[str, Any], anchors: str) -> Iterator[str]:
    yield '<table><thead><tr><th scope="col">Field</th><th scope="col">Type</th>'
    yield '<th scope="col">Default</th></tr></thead><tbody>'
    required = schema.get("required", ())
    for field, described in schema.get("properties", {}).items():
        default = "required" if field in required else _default(described)
        yield f'<tr><th scope="row"><code>{escape(field)}</code></th>'
        yield f"<td>{_type(described, anchors)}</td><td>{default}</td></tr>"
    yield "</tbody></table>"


def _events(events: EventReference) -> Iterator[str]:
    yield '<h2 id="events">Realtime events</h2>'
    yield (
        "<p>The events of the WebSocket endpoint <code>/v1/realtime</code>. Events whose types "
        "begin with "
    )
    yield "<code>antiphon.</code> are not part of OpenAI's API.</p>"
    for title, listed in (("From the client", events.client), ("From the gateway", events.server)):
        yield f"<h3>{title}</h3>"
        for event in listed:
            yield from _event(event)
    yield '<h2 id="objects">Objects of realtime events</h2>'
    for name, schema in events.objects.items():
        yield from _message(name, schema, _REALTIME)


def _event(event: ReferenceEvent) -> Iterator[str]:
    yield f'<details id="event.{escape(event.type)}" open>'
    yield f"<summary><code>{escape(event.type)}</code></summary>"
    if event.description:
        yield f"<p>{escape(event.description)}</p>"
    if event.fields is not None:
        yield from _fields(event.fields, _REALTIME)
    example = msgspec.json.format(msgspec.json.encode(event.example), indent=2).decode()
    yield f'<pre class="event"><code>{escape(example)}</code></pre></details>'


def _default(described: Mapping[str, Any]) -> str:
    if "default" not in described:
        return "left out"
    default = described["default"]
    if isinstance(default, dict):
        # Fields that are null are left out.
        default = {name: value for name, value in default.items() if value is not None}
    return f"<code>{escape(msgspec.json.encode(default).decode())}</code>"


def _type(schema: Mapping[str, Any], anchors: str = "") -> str:
    """Return a short description of a type, with links to messages."""
    if reference := schema.get("$ref"):
        name = escape(reference.rsplit("/", 1)[1])
        return f'<a href="#{anchors}{name}"><code>{name}</code></a>'
    if choices := schema.get("anyOf"):
        return " or ".join(_type(each, anchors) for each in choices)
    if "enum" in schema:
        return ", ".join(
            f"<code>{escape(msgspec.json.encode(each).decode())}</code>" for each in schema["enum"]
        )
    kind = escape(str(schema.get("type", "anything")))
    inner = schema.get("items") or schema.get("additionalProperties")
    return f"{kind} of {_type(inner, anchors)}" if isinstance(inner, dict) and inner else kind
