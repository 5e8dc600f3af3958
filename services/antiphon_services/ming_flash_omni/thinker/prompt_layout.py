"""The conversation layout.

The vendor's processor implements the layout in Python. The template in the checkpoint's
`tokenizer_config.json` is similar, but doesn't support recordings and images, and has no default
system message.
"""

from __future__ import annotations

import json

SYSTEM = "你是一个友好的AI助手。"
"""The default system message."""
THINKING = "\n\ndetailed thinking off"

RECORDING_MARKS = "<audio><audioPatch></audio>"
IMAGE_MARKS = "<image><imagePatch></image>\n"

_CONTENT = """\
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'text' -%}
{{- part.text -}}
{%- elif part.type == 'audio' and message.role == 'user' -%}
{{- RECORDING -}}
{%- elif part.type == 'image' and message.role == 'user' -%}
{{- IMAGE -}}
{%- else -%}
{{- raise_exception('a message of the ' + message.role + ' holds ' + part.type) -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
"""

TEMPLATE = """\
{{- '<role>SYSTEM</role>' -}}
{%- if messages[0].role == 'system' -%}
{%- set message = messages[0] -%}
CONTENT
{%- else -%}
{{- DEFAULT -}}
{%- endif -%}
{{- THINKING + '<|role_end|>' -}}
{%- for message in messages -%}
{%- if not (loop.first and message.role == 'system') -%}
{%- if message.role == 'user' -%}
{{- '<role>HUMAN</role>' -}}
{%- elif message.role == 'assistant' -%}
{{- '<role>ASSISTANT</role>' -}}
{%- else -%}
{{- raise_exception('a message of the role ' + message.role + ' stands among turns') -}}
{%- endif -%}
CONTENT
{{- '<|role_end|>' -}}
{%- endif -%}
{%- endfor -%}
{{- '<role>ASSISTANT</role>' -}}
"""
for _name, _value in (
    ("CONTENT\n", _CONTENT),
    ("RECORDING", json.dumps(RECORDING_MARKS)),
    ("IMAGE", json.dumps(IMAGE_MARKS)),
    ("DEFAULT", json.dumps(SYSTEM, ensure_ascii=False)),
    ("THINKING", json.dumps(THINKING)),
):
    TEMPLATE = TEMPLATE.replace(_name, _value)
