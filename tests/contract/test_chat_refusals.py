from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.contract.fake_stages import THINKER
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, ServedGateway, tell_anew

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAV = {"voice": "ethan", "format": "wav"}
BOTH = ["text", "audio"]
HUGE = 10**399


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


F_CALLED = {"name": "f", "arguments": "{}"}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
    (user({"type": "smell"}), "messages[0].content[0].type"),
    (user({"type": "text"}), "messages[0].content[0].text"),
    (user({"type": "text", "text": 5}), "messages[0].content[0].text"),
    (user({"type": "input_audio", "input_audio": {"data": "x"}}),
     "messages[0].content[0].input_audio.data"),
    ({"messages": [{"role": "system", "content": [
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}]},
     "messages[0].content[0]"),
    ({"model": ""}, "model"),
    ({"model": 5}, "model"),
    ({"modalities": [], "audio": WAV}, "audio"),
    ({"modalities": ["text", "smell"]}, "modalities"),
    ({"modalities": BOTH}, "audio"),
    ({"audio": WAV}, "audio"),
    ({"modalities": BOTH, "audio": {"voice": "ethan"}}, "audio.format"),
    ({"modalities": BOTH, "audio": {"format": "wav"}}, "audio.voice"),
    ({"modalities": BOTH, "audio": {"voice": "", "format": "wav"}}, "audio.voice"),
    ({"modalities": BOTH, "audio": {"voice": "nobody", "format": "wav"}}, "audio.voice"),
    ({"modalities": BOTH, "audio": {"voice": "ethan", "format": "tape"}}, "audio.format"),
    ({"modalities": BOTH, "audio": WAV, "stream": True}, "audio.format"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -2}, "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"seed": -2}, "seed"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": [str(n) for n in range(17)]}, "stop"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 2.5}, "top_logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"talker": {"top_k": -2}}, "talker.top_k"),
    ({"delivery": "by post"}, "delivery"),
    ({"chunk_policy": {"first": 0, "ramp": [], "steady": 1}}, "chunk_policy"),
    ({"chunk_policy": {"first": -1, "ramp": [], "steady": 1}}, "chunk_policy"),
    ({"chunk_policy": {"first": 1, "ramp": []}}, "chunk_policy.steady"),
    *(({name: sign * HUGE}, name) for name in ("max_tokens", "max_completion_tokens", "seed")
      for sign in (1, -1)),
    *(({"talker": {name: HUGE}}, f"talker.{name}") for name in (
        "top_k", "seed", "max_tokens", "temperature", "top_p", "repetition_penalty")),
    ({"logprobs": True, "top_logprobs": HUGE}, "top_logprobs"),
    ({"temperature": HUGE}, "temperature"),
    ({"temperature": 1e-39}, "temperature"),
    ({"top_p": 1e-39}, "top_p"),
    ({"talker": {"repetition_penalty": 1e-39}}, "talker.repetition_penalty"),
    ({"chunk_policy": {"first": HUGE, "ramp": [], "steady": 1}}, "chunk_policy"),
    ({"chunk_policy": {"first": 1, "ramp": [HUGE], "steady": 1}}, "chunk_policy"),
    ({"chunk_policy": {"first": 1, "ramp": [1] * 65, "steady": 1}}, "chunk_policy"),
    ({"user": 5}, "user"),
    ({"user": "u" * 513}, "user"),
    ({"metadata": "words"}, "metadata"),
    ({"metadata": {"key": 5}}, "metadata[...]"),
    ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ({"metadata": {"key": "v" * 513}}, "metadata[...]"),
    ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [tool("")]}, "tools[0].function.name"),
    ({"tools": [tool("a b")]}, "tools[0].function.name"),
    ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name"),
    ({"tools": [tool("f", parameters=5)]}, "tools[0].function"),
    ({"tools": [tool(f"f{n}") for n in range(129)]}, "tools"),
    ({"tools": [tool("f", description="d" * (64 << 10))]}, "tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [tool("f")], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [tool("f")], "response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [tool("f")], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tools": [tool("f")], "tool_choice": tool("g")}, "tool_choice"),
    ({"messages": [{"role": "tool", "content": "5"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": "5", "tool_call_id": "a"}]},
     "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": "5", "tool_calls": [{"id": "a",
     "function": F_CALLED}]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "user", "content": "5", "images": [
     {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]},
     "messages[0].images"),
    ({"messages": [{"role": "assistant", "content": "x", "images": [{}]}]},
     "messages[0].images[0].image_url"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
     "messages[0].tool_calls[0].id"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function":
     {"name": "f", "arguments": "[]"}}]}]}, "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function":
     {"name": "f g", "arguments": ""}}]}]}, "messages[0].tool_calls[0].function.name"),
    ({"prompt_cache_key": 5}, "prompt_cache_key"),
    ({"prompt_cache_options": [1]}, "prompt_cache_options"),
    ({"prompt_cache_retention": 5}, "prompt_cache_retention"),
    ({"safety_identifier": {"a": 1}}, "safety_identifier"),
    ({"top_k": -2}, "top_k"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"n": True}, "n"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    (user({"type": "input_audio", "input_audio": {"data": "", "format": "aiff"}}),
     "messages[0].content[0].input_audio.data"),
    (user({"type": "text", "text": "A"}, {"type": "audio_url"}),
     "messages[0].content[1].audio_url"),
    (user({"type": "audio_url", "audio_url": {"url": "data:image/png;base64,AAAA"}}),
     "messages[0].content[0].audio_url.url"),
    ({"messages": [{"role": "user", "content": "Hi", "name": "n" * 513}]}, "messages[0].name"),
    ({"messages": MESSAGES * 4097}, "messages[4096]"),
    (user(*[{"type": "text", "text": "a"}] * 4097), "messages[0]"),
    ({"chat_template_kwargs": {"think": {"deep": True}}}, "chat_template_kwargs[...]"),
    ({"chat_template_kwargs": {"think": "a" * 1025}}, "chat_template_kwargs.think"),
    ({"chat_template_kwargs": {"think": 1 << 40}}, "chat_template_kwargs.think"),
    ({"chat_template_kwargs": {f"v{n}": n for n in range(17)}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
]  # fmt: skip

NOT_YET: list[tuple[dict[str, Any], str]] = [
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
    ({"min_tokens": 5}, "min_tokens"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"store": True}, "store"),
    ({"use_audio_in_video": True}, "use_audio_in_video"),
    ({"mm_processor_kwargs": {"use_audio_in_video": True}}, "mm_processor_kwargs"),
    (user({"type": "audio_url", "audio_url": {"url": "https://there.example/a.wav"}}),
     "messages[0].content[0].audio_url.url"),
    (user({"type": "file", "file": {}}), "messages[0].content[0]"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"messages": [{"role": "tool", "content": "5", "tool_call_id": "a"}]}, "messages[0]"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": F_CALLED}]}]},
     "messages[0]"),
    ({"messages": [{"role": "function", "content": "5", "name": "f"}]}, "messages[0].role"),
]  # fmt: skip


def case_name(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)[:40]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=case_name)
async def test_chat_refuses_a_wrong_request_naming_the_field(
    served: ServedGateway, fields: dict[str, Any], param: str
) -> None:
    response = await served.chat(**fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error", param, "invalid_argument",
    )  # fmt: skip
    assert error["message"].startswith(f"{param}")
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"messages": [{"role": "robot"}]}, "assistant, developer, function, system, tool, user"),
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "function"),
        ({"delivery": "slow"}, "stream, whole"),
    ],
    ids=case_name,
)
async def test_chat_names_the_allowed_values_of_an_invalid_choice(
    served: ServedGateway, fields: dict[str, Any], allowed: str
) -> None:
    message = (await served.chat(**fields)).json()["error"]["message"]
    assert message.endswith(f"; use one of: {allowed}")


async def test_chat_names_the_parts_that_replace_one_of_another_type(served: ServedGateway) -> None:
    message = (await served.chat(**user({"type": "file", "file": {}}))).json()["error"]["message"]
    assert message == (
        "messages[0].content[0]: file parts are not supported; use text, input_audio, image_url or "
        "video_url"
    )


@pytest.mark.parametrize(("fields", "param"), NOT_YET, ids=case_name)
async def test_chat_refuses_what_it_cannot_do_yet_naming_the_field(
    served: ServedGateway, fields: dict[str, Any], param: str
) -> None:
    response = await served.chat(**fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, "not_implemented")
    assert param in error["message"]


async def test_chat_lists_the_voices_when_the_voice_is_unknown(served: ServedGateway) -> None:
    with pytest.raises(openai.BadRequestError, match="chelsie, ethan"):
        await served.openai.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            modalities=["text", "audio"],
            audio={"voice": "nobody", "format": "wav"},
        )


async def test_chat_is_a_404_when_the_model_is_unknown(served: ServedGateway) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await served.openai.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert (caught.value.param, caught.value.code) == ("model", "not_found")


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": "\xff"}', b"[]", b"5"])
async def test_chat_is_a_400_when_the_body_is_not_a_json_object(
    served: ServedGateway, body: bytes
) -> None:
    response = await served.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_argument"


NESTS: dict[str, bytes] = {
    "metadata": b'"messages": [], "metadata": %b',
    "tools": b'"messages": [], "tools": %b',
    "part": b'"messages": [{"role": "user", "content": [{"type": "audio_url", "url": %b}]}]',
}


@pytest.mark.parametrize("where", NESTS)
@pytest.mark.parametrize("depth", [2_000, 100_000])
async def test_chat_is_a_400_when_the_body_is_nested_too_deeply(
    served: ServedGateway, where: str, depth: int
) -> None:
    nest = b"[" * depth + b"]" * depth
    body = b'{"model": "fake-omni", ' + NESTS[where] % nest + b"}"
    response = await served.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400, response.text


async def test_chat_takes_what_has_no_effect(served: ServedGateway) -> None:
    response = await served.chat(
        user="u" * 512,
        metadata={"k" * 64: "v" * 512} | {str(n): "v" for n in range(15)},
        parallel_tool_calls=True,
        prompt_cache_key="key",
        prompt_cache_options={"mode": "implicit", "ttl": "30m"},
        prompt_cache_retention="24h",
        safety_identifier="somebody",
    )
    assert response.status_code == 200, response.text


async def test_an_error_quotes_no_more_than_a_person_reads(served: ServedGateway) -> None:
    response = await served.chat(options={"f" * 400_000: 1})
    assert response.status_code == 400
    error = response.json()["error"]
    assert len(error["message"]) <= 8192
    assert error["param"].startswith("options.fff")
    assert len(error["param"]) <= 256


async def test_chat_names_a_missing_model(served: ServedGateway) -> None:
    response = await served.http.post("/v1/chat/completions", json={"messages": MESSAGES})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize("announced", [True, False])
async def test_chat_is_a_413_when_the_body_is_too_large(
    served: ServedGateway, announced: bool
) -> None:
    async def pieces() -> Any:
        for _ in range(40):
            yield b" " * (1 << 16)

    body: Any = b" " * (40 << 16) if announced else pieces()
    response = await served.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_refused_chat_touches_no_stage(served: ServedGateway) -> None:
    await served.chat(modalities=BOTH, audio={"voice": "nobody", "format": "wav"})
    assert not any(stage.sessions for stage in served.fakes.by_role.values())


async def test_stream_is_refused_before_it_starts(served: ServedGateway) -> None:
    response = await served.chat(**{**SPOKEN, "audio": {"voice": "nobody", "format": "pcm16"}},
                               stream=True)  # fmt: skip
    assert response.status_code == 400


async def test_text_that_cannot_fit_into_the_context_is_refused_before_any_stage_is_asked(
    served: ServedGateway,
) -> None:
    told = served.gateway.fleet[THINKER].require()
    before = told.max_input_text_bytes
    sessions = len(served.fakes[THINKER].sessions)
    told.max_input_text_bytes = 20
    tell_anew(served.gateway)
    try:
        said = [{"role": "system", "content": "ö" * 5}, {"role": "user", "content": "x" * 11}]
        refused = await served.chat(messages=said)
        said[1]["content"] = "x" * 10
        taken = await served.chat(messages=said)
    finally:
        told.max_input_text_bytes = before
        tell_anew(served.gateway)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "messages[1]"
    assert "21 bytes" in error["message"]
    assert "4096 positions is 20" in error["message"]
    assert taken.status_code == 200
    assert len(served.fakes[THINKER].sessions) == sessions + 1
