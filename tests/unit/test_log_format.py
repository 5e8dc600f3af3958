"""What clients sent, quoted in log lines."""

from __future__ import annotations

import io
import json
import logging

import pytest

from antiphon.log_format import PrintableFormatter


def logged(message: str, error: Exception | None = None) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(PrintableFormatter("%(levelname)s %(message)s"))
    info = (type(error), error, None) if error else None
    handler.handle(logging.LogRecord("a", logging.INFO, "", 0, "%s", (message,), info))
    return out.getvalue()


@pytest.mark.parametrize(
    "text", ["\n", "\r", "\x1b[2J", "\x7f", "\x85", "\x9b31m", "\u2028", "\u202e", "\U000e0001"]
)
def test_what_is_not_printable_is_escaped_and_json_stays_json(text: str) -> None:
    said = json.dumps({"request": f"GET /{text}"}, ensure_ascii=False)
    line = logged(said).removesuffix("\n")
    assert line.isprintable()
    assert json.loads(line.removeprefix("INFO ")) == json.loads(said)
    line = logged(f"quoted {text}").removesuffix("\n")
    assert line == f"INFO quoted {json.dumps(text)[1:-1]}"


def test_printable_text_of_any_language_stays() -> None:
    assert logged("wörld 你好 😀") == "INFO wörld 你好 😀\n"


def test_only_a_traceback_has_lines() -> None:
    lines = logged("a\nb", ValueError("c\x1b")).splitlines()
    assert lines == ["INFO a\\nb", "ValueError: c\\u001b"]
