"""Chat template variables set by a client, as in vLLM's `chat_template_kwargs`. This module
performs no I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from antiphon.errors import InvalidArgument

TemplateValue = str | int | float | bool | None

FIELD = "chat_template_kwargs"
MAX_VARIABLES = 16
MAX_VALUE_CHARS = 1024
MAX_NUMBER = 1 << 31
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

# Reserved names. They are either derived from the conversation or parameters of the call that
# renders the template.
_TAKEN = frozenset(
    [
        *("conversation", "documents", "messages", "self", "tools"),
        *("add_generation_prompt", "chat_template", "continue_final_message"),
        *("max_length", "padding", "return_tensors", "tokenize", "tokenizer_kwargs", "truncation"),
        *("return_assistant_tokens_mask", "return_dict"),
    ]
)


def check_template_variables(given: Mapping[str, TemplateValue]) -> None:
    """Raise `InvalidArgument` if one of the names or values must not be passed to a template."""
    if len(given) > MAX_VARIABLES:
        raise InvalidArgument(f"{FIELD}: must have at most {MAX_VARIABLES} variables", field=FIELD)
    for name, value in given.items():
        if _NAME.fullmatch(name) is None or name in _TAKEN:
            raise InvalidArgument(f"{FIELD}: {name[:64]!r} can't be set; leave it out", field=FIELD)
        field = f"{FIELD}.{name}"
        if isinstance(value, str) and len(value) > MAX_VALUE_CHARS:
            raise InvalidArgument(
                f"{field}: has more than {MAX_VALUE_CHARS} characters", field=field
            )
        if isinstance(value, int | float) and not (
            math.isfinite(value) and abs(value) <= MAX_NUMBER
        ):
            raise InvalidArgument(
                f"{field}: must be from {-MAX_NUMBER} to {MAX_NUMBER}", field=field
            )
