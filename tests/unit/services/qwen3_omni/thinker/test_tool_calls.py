"""What of a reply that calls functions leaves on which edge; the replies are known beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3OmniMoeForConditionalGeneration

from antiphon.deployment.schema import StageConfig
from antiphon.errors import ErrorCode
from antiphon.runtime.engine import LoadedStage
from antiphon.values.conversation import Conversation, ToolCall, ToolChoice
from antiphon.values.segment import FinishReason
from antiphon.wire.logprobs import logprobs_from_tensors
from antiphon.wire.tool_calls import CallPiece, call_pieces_from_tensors
from antiphon_services.qwen3_omni.thinker.load import load
from antiphon_testkit.conversations import chat_messages, chat_tools, ended_calls
from antiphon_testkit.drive_engine import SegmentOutput, run_segment
from antiphon_testkit.qwen3_omni.scripted_checkpoint import (
    BEGINNING,
    END,
    build_scripted_checkpoint,
)
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import SPEECH, ask, segment

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
OPEN, CLOSE = "<tool_call>", "</tool_call>"
SKY, SEA = (f'\n{{"name": "look", "arguments": {{"at": "{at}"}}}}\n' for at in ("sky", "sea"))
# A second call needs tokens of its own: what follows a token is always the same.
SCRIPT = {
    BEGINNING: "Hello",
    "Hello": " you.",
    " you.": "\n\n\n",
    "\n\n\n": OPEN,
    OPEN: SKY,
    SKY: CLOSE,
    CLOSE: "\n<tool_call>\n",
    "\n<tool_call>\n": SEA,
    SEA: "</tool_call> Well.",
    "</tool_call> Well.": END,
    # Behind the beginning of a call that is forced.
    ":": ' {"at": "air"}}\n',
    ' {"at": "air"}}\n': CLOSE,
}
TEXT = "Hello you.\n\n"
LOOK = '{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}'
SAY = '{"type": "function", "function": {"name": "say"}}'
CALLS = [ToolCall("", "look", f'{{"at": "{at}"}}') for at in ("sky", "sea")]
OUTPUTS = SPEECH | {"tool_calls"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("scripted") / "scripted"
    build_scripted_checkpoint(made, SCRIPT)
    return made


@pytest.fixture(scope="module")
def stage(directory: Path) -> LoadedStage:
    return load(directory, StageConfig())


def offering(*tools: str, **choice: Any) -> Conversation:
    asked = ask("Look")
    return Conversation(asked.messages, tools=tools, tool_choice=ToolChoice(**choice))


def run(stage: LoadedStage, conversation: Conversation, **sampling: Any) -> SegmentOutput:
    return run_segment(stage.engine, *segment(conversation, outputs=OUTPUTS, **sampling))


def text(out: SegmentOutput) -> str:
    return out.tensors("text")["utf8"].tobytes().decode()


def calls(out: SegmentOutput) -> list[ToolCall]:
    return ended_calls(call_pieces_from_tensors(out.tensors("tool_calls")))


def test_describe_says_that_the_checkpoint_takes_tools(stage: LoadedStage) -> None:
    assert "tools" in stage.facts.input_kinds


def test_text_is_spoken_and_calls_leave_on_an_edge_of_their_own(
    stage: LoadedStage, directory: Path
) -> None:
    conversation = offering(LOOK)
    out = run(stage, conversation)
    assert out.failed is None, out.failed
    assert text(out) == TEXT
    assert calls(out) == CALLS
    ids = out.tensors("text")["ids"].tolist()
    spoken = out.tensors("tokens")["ids"].tolist()
    # All before the call, its line break included.
    assert spoken == ids[:3]
    for edge in ("text", "tokens", "tool_calls"):
        assert out.finish_reason(edge) is STOP

    model: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(directory)
    tokenizer = load(directory, StageConfig()).engine.intake.prompts.chat.tokenizer  # type: ignore[attr-defined]
    prompt = tokenizer.apply_chat_template(
        chat_messages(conversation),
        tools=chat_tools(conversation),
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=False,
    )
    theirs = model.thinker.generate(
        input_ids=prompt, max_new_tokens=48, do_sample=False,
        eos_token_id=model.config.im_end_token_id,
    )  # fmt: skip
    assert out.tensors("prompt")["ids"].tolist() == prompt[0].tolist()
    assert ids == theirs[0, prompt.shape[1] :].tolist()


def test_speech_ends_where_the_first_call_begins(stage: LoadedStage) -> None:
    out = run(stage, offering(LOOK))
    ends = [each.edge for each in out.emitted if each.finish_reason]
    assert ends == ["prompt", "tokens", "text", "tool_calls"]
    [end] = [n for n, e in enumerate(out.emitted) if e.edge == "tokens" and e.finish_reason]
    first = next(n for n, e in enumerate(out.emitted) if e.edge == "tool_calls")
    assert end < first


def test_each_call_leaves_as_it_is_written(stage: LoadedStage) -> None:
    out = run(stage, offering(LOOK))
    emitted = [each for each in out.emitted if each.edge == "tool_calls"]
    # Each line is what a token has let go.
    assert [(e.position, call_pieces_from_tensors(e.tensors)) for e in emitted] == [
        (0, (CallPiece("look", '{"at": "sky"}'),)),
        (1, (CallPiece("", "", ends=True),)),
        (2, (CallPiece("look", '{"at": "sea"}'),)),
        (3, (CallPiece("", "", ends=True),)),
        (4, ()),
    ]


def test_reply_is_ordinary_text_when_there_are_no_functions(stage: LoadedStage) -> None:
    out = run(stage, ask("Look"))
    assert text(out).startswith(f"{TEXT}\n{OPEN}{SKY}{CLOSE}\n")
    assert calls(out) == []
    assert len(out.tensors("tokens")["ids"]) == len(out.tensors("text")["ids"]) - 1


def test_logprobs_are_those_of_the_text_alone(stage: LoadedStage) -> None:
    out = run(stage, offering(LOOK), top_logprobs=1)
    pieces = [each.tensors for each in out.emitted if each.edge == "text"]
    entries = [entry for each in pieces for entry in logprobs_from_tensors(each)]
    joined = b"".join(each.token_bytes for each in entries).decode()
    # The line break before the call shares an id with two that are text.
    assert joined == f"{TEXT}\n"


def test_reply_ends_behind_the_first_call_when_they_are_not_parallel(stage: LoadedStage) -> None:
    out = run(stage, offering(LOOK, parallel=False))
    assert calls(out) == CALLS[:1]
    assert out.completed is not None
    assert out.completed.finish_reason is STOP
    assert out.completed.output_positions == 6


@pytest.mark.parametrize(
    ("forced", "names", "expected"),
    [("", (LOOK, SAY), CALLS), ("say", (LOOK, SAY), [ToolCall("", "say", '{"at": "air"}')])],
    ids=["any", "one"],
)
def test_reply_begins_with_a_call_when_it_must(
    stage: LoadedStage, forced: str, names: tuple[str, ...], expected: list[ToolCall]
) -> None:
    out = run(stage, offering(*names, forced=forced, parallel=not forced))
    assert out.failed is None, out.failed
    assert text(out) == ""
    assert calls(out) == expected
    assert out.tensors("tokens") == {}
    # The beginning is the model's to go on with, and nobody's to hear.
    free = run(stage, offering(*names))
    prompt = out.tensors("prompt")["ids"].tolist()
    assert prompt == free.tensors("prompt")["ids"].tolist()
    assert out.completed is not None
    assert out.completed.input_positions > len(prompt)


@pytest.mark.parametrize(
    ("conversation", "sampling"),
    [
        (offering(SAY), {}),
        (offering(LOOK), {"max_tokens": 5}),
        (offering(LOOK), {"stop": ('"at"',)}),
    ],
    ids=["unknown function", "cut by the limit", "cut by a stop string"],
)
def test_segment_fails_when_a_call_is_none(
    stage: LoadedStage, conversation: Conversation, sampling: dict[str, Any]
) -> None:
    out = run(stage, conversation, **sampling)
    assert out.failed is not None
    assert (out.failed.error.code, out.failed.error.edge) == (
        ErrorCode.UNUSABLE_OUTPUT,
        "tool_calls",
    )
    assert calls(out) == []
    assert text(out) == TEXT
    assert len(out.tensors("tokens")["ids"]) == 3
    # Others are not affected.
    assert calls(run(stage, offering(LOOK))) == CALLS


def test_limit_behind_a_call_is_told(stage: LoadedStage) -> None:
    out = run(stage, offering(LOOK), max_tokens=6)
    assert calls(out) == CALLS[:1]
    assert out.finish_reason("tool_calls") is LENGTH


def test_stop_string_in_the_text_still_ends_it(stage: LoadedStage) -> None:
    out = run(stage, offering(LOOK), stop=(" you",))
    assert text(out) == "Hello"
    assert calls(out) == []
    assert out.finish_reason("tokens") is STOP


def test_history_has_the_ids_that_the_model_said(stage: LoadedStage) -> None:
    """So the next turn reuses all of the one before."""
    first = offering(LOOK, parallel=False)
    out = run(stage, first)
    [call] = calls(out)
    answered = [*first.messages]
    said = replace_message(text(out), call)
    again = Conversation((*answered, said), tools=(LOOK,))
    before = out.tensors("prompt")["ids"].tolist()
    after = run(stage, again).tensors("prompt")["ids"].tolist()
    told = before + out.tensors("text")["ids"].tolist()
    # What follows is the end of the message.
    assert after[: len(told)] == told


def replace_message(said: str, call: ToolCall) -> Any:
    [message] = ask(said).messages
    from msgspec import structs

    return structs.replace(message, role="assistant", tool_calls=(structs.replace(call, id="c"),))
