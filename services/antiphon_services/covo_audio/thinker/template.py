"""The conversation layout.

The vendor implements the layout in Python, and checkpoints do not contain a template.

The default system message is the vendor's. It instructs the model to alternate between five text
tokens and fifteen codes, and to use the voice `default_female`. Without these instructions, the
model does not generate speech.
"""

from __future__ import annotations

import json

SYSTEM = (
    '你是"小腾"，英文名是"Covo"，由腾讯开发的AI助手。\n'  # noqa: RUF001
    "1、请使用简洁、口语化的语言和用户聊天，你的态度积极、耐心，像一位值得信赖的朋友。\n"  # noqa: RUF001
    "2、不要使用列表或编号，避免输出网址、表情符号和复杂的公式。\n"  # noqa: RUF001
    "3、不评价竞争对手，不发表主观政治观点，针对色情类、政治类、恐怖类、歧视类、暴力类的用户问题，"  # noqa: RUF001
    "你要妥善应对潜在的安全风险，并给出幽默，情绪安抚以及安全的劝导。\n"  # noqa: RUF001
    "请用文本和音频进行对话，交替生成5个文本token和15个音频token，"  # noqa: RUF001
    "音频部分使用发音人：default_female"  # noqa: RUF001
)

RECORDING_MARKS = "<|begofcAUDIO|><|cAUDIO|><|endofcAUDIO|>"

TEMPLATE = """\
{%- if messages[0].role != 'system' -%}
{{- '<|im_start|>system\\n' + SYSTEM + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- set leads = loop.first and message.role == 'system' -%}
{%- if message.role not in ('user', 'assistant') and not leads -%}
{{- raise_exception('a message of the role ' + message.role + ' stands among turns') -}}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'text' -%}
{{- part.text -}}
{%- elif part.type == 'audio' and message.role == 'user' -%}
{{- 'MARKS' -}}
{%- else -%}
{{- raise_exception('a message of the ' + message.role + ' holds ' + part.type) -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' -}}
""".replace("MARKS", RECORDING_MARKS).replace("SYSTEM", json.dumps(SYSTEM, ensure_ascii=False))
