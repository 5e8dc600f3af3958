"""vLLM holds the text of those who ask for it to a JSON schema, and refuses what is none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from antiphon.errors import InvalidArgument
from antiphon.runtime.engine import DetachedEngine
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.tiny_checkpoint import OTHER, build_tiny_checkpoint
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import TEXT, segment

pytest.importorskip("vllm")
# It cannot be imported without vLLM.
from tests.unit.services.qwen3_omni.thinker.test_vllm_engine import (
    MEMORY,
    start,
    together,
)

pytestmark = [
    # As in test_vllm_engine.
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
]

SCHEMAS = {
    0: '{"enum": ["Tom", "Ida"]}',
    1: '{"type": "string", "pattern": "^[0-4]{3}-[a-d]{9}$"}',
    2: '{"type": "array", "items": {"const": 7}, "minItems": 2, "maxItems": 2}',
}
VALUES = {0: "Tom|Ida", 1: "[0-4]{3}-[a-d]{9}", 2: r"\[7, 7\]"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DetachedEngine]:
    directory = tmp_path_factory.mktemp("schema") / "tiny-other"
    build_tiny_checkpoint(directory, OTHER, seed=4)
    made = start(directory, **MEMORY)
    yield made
    made.close()


def test_text_keeps_to_a_schema_and_ends_where_its_value_does(engine: DetachedEngine) -> None:
    """Random weights would say anything, as the last one does, in the company of the others."""
    segments = {
        SegmentKey("s", number): segment(TEXT[number], json_schema=SCHEMAS.get(number))
        for number in range(4)
    }
    alone = together(engine, {SegmentKey("s", 3): segment(TEXT[3])})
    answers = together(engine, segments)
    for number, pattern in VALUES.items():
        answer = answers[SegmentKey("s", number)]
        assert answer.failed is None, answer.failed
        assert answer.completed is not None
        text = answer.tensors("text")["utf8"].tobytes().decode()
        if answer.completed.finish_reason is FinishReason.STOP:
            said = json.loads(text)
            assert re.fullmatch(pattern, said if isinstance(said, str) else str(said))
        else:
            # Between the parts of a value there may be any white space.
            assert number == 2
            assert re.fullmatch(r"\[\s*(7\s*(,\s*(7\s*)?)?)?", text)
    ((free, here), (_, there)) = (*list(answers.items())[3:], *alone.items())
    assert here.tensors("text")["ids"].tolist() == there.tensors("text")["ids"].tolist(), free


@pytest.mark.parametrize(
    "schema", ['{"type": "chime"}', '{"$ref": "#/nowhere"}', '{"type": "string", "pattern": "("}']
)
def test_schema_that_vllm_cannot_keep_to_is_refused_and_nobody_else(
    engine: DetachedEngine, schema: str
) -> None:
    segments = {
        SegmentKey("s", 0): segment(TEXT[0], json_schema=schema),
        SegmentKey("s", 1): segment(TEXT[1]),
    }
    refused, other = together(engine, segments).values()
    assert refused.failed is not None
    assert isinstance(refused.failed.error, InvalidArgument)
    assert refused.failed.error.field == "json_schema"
    assert other.failed is None, other.failed


SLOW_TO_PARSE = json.dumps(
    {
        "type": "object",
        "properties": {f"p{i}": {"type": "string", "pattern": "(a?){1,5000}"} for i in range(40)},
    }
)
MANY_WARNINGS = json.dumps({"type": "string", "pattern": "\\U" * 20_000})


def test_hostile_schemas_are_refused_and_delay_and_log_nothing(
    engine: DetachedEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    schemas = [SLOW_TO_PARSE, MANY_WARNINGS, SCHEMAS[0], None]
    segments = {
        SegmentKey("s", number): segment(TEXT[0], json_schema=schema)
        for number, schema in enumerate(schemas)
    }
    *hostile, honest, free = together(engine, segments).values()
    for each, reason in zip(hostile, ("CPU time", "is not recognized"), strict=True):
        assert each.failed is not None
        assert isinstance(each.failed.error, InvalidArgument)
        assert each.failed.error.field == "json_schema"
        assert reason in each.failed.error.message
    assert honest.failed is None, honest.failed
    assert free.failed is None, free.failed
    written = capfd.readouterr()
    assert "Warning" not in written.out + written.err
