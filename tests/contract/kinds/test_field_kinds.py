"""Fields that programs always send, echo, or make up: which count, and what is said of the rest."""

from __future__ import annotations

import base64
import logging
from typing import Any

import httpx
import pytest

from antiphon.errors import InvalidArgument
from antiphon.v1 import stage_pb2
from tests.contract.fake_stages import TALKER, THINKER, Session
from tests.contract.media_files import said
from tests.contract.reading_model import SPEAKER, Reader, post
from tests.contract.served_gateway import (
    MESSAGES,
    MODEL,
    SPOKEN,
    ServedGateway,
    serve_gateway,
    tell_anew,
)
from tests.contract.test_transcriptions import file

pytestmark = pytest.mark.asyncio(loop_scope="session")

IGNORED = "x-antiphon-ignored"
PATH = "/v1/chat/completions"

# By sender: what it sends besides what is needed, and what is reported as ignored.
CHAT: dict[str, tuple[dict[str, Any], str]] = {
    "LobeChat, new-api: the answer with its reasoning": (
        {"messages": [*MESSAGES, {"role": "assistant", "content": "Yes", "reasoning_content": "x"},
                      *MESSAGES]}, "messages[].reasoning_content"),
    "Anthropic's adapters: cache_control": (
        {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}]},
        "messages[].content[].cache_control"),
    "Open WebUI: ids of messages": (
        {"messages": [{"id": "m1", "timestamp": 5, **MESSAGES[0]}]},
        "messages[].id, messages[].timestamp"),
    "Qwen's: enable_thinking": ({"enable_thinking": False}, "enable_thinking"),
    "a program's own": ({"color": "red", "chat_id": "c"}, "color, chat_id"),
    "n8n: null for what is not set": (
        {"temperature": None, "stop": None, "audio": None, "modalities": None, "tools": None,
         "tool_choice": None, "response_format": None, "n": None, "stream_options": None,
         "options": None, "delivery": None, "chunk_policy": None, "logit_bias": None,
         "user": None, "whatever": None}, ""),
    "forms: empty values for what is not set": (
        {"temperature": "", "stop": "", "modalities": [], "response_format": "", "audio": {},
         "stream_options": {}, "tool_choice": "", "service_tier": "", "options": {}, "user": "",
         "seed": "", "max_tokens": "", "metadata": {}, "whatever": ""}, ""),
    "vLLM's users: -1": (
        {"seed": -1, "max_tokens": -1, "max_completion_tokens": -1, "top_k": -1,
         "truncate_prompt_tokens": -1}, ""),
    "vLLM's users: defaults written out": (
        {"min_p": 0.0, "length_penalty": 1.0, "best_of": 1, "use_beam_search": False,
         "ignore_eos": False, "min_tokens": 0, "stop_token_ids": [], "skip_special_tokens": True,
         "spaces_between_special_tokens": True, "include_stop_str_in_output": False,
         "echo": False, "add_generation_prompt": True, "guided_json": None, "priority": 3,
         "request_id": "r"}, ""),
    "OpenAI's users: defaults written out": (
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "store": False,
         "functions": [], "function_call": "none", "n": 1, "verbosity": "medium",
         "service_tier": "auto", "reasoning_effort": "none", "web_search_options": {}}, ""),
    "a stage's sampling with a stop": ({TALKER: {"top_k": -1, "stop": "x"}}, f"{TALKER}.stop"),
    "a name that is no header": ({"a\r\nb": 1, "ü": 2}, "(unprintable)"),
    "names of any number": (
        {f"f{n}": n for n in range(40)}, ", ".join(f"f{n}" for n in range(32))),
}  # fmt: skip


@pytest.mark.parametrize("sender", CHAT)
async def test_a_chat_is_answered_whatever_else_its_sender_says(
    served: ServedGateway, sender: str
) -> None:
    fields, ignored = CHAT[sender]
    answer = await served.chat(**fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get(IGNORED, "") == ignored
    assert answer.json()["choices"][0]["message"]["content"] == "Hello wörld!"


async def test_minus_one_is_what_vllm_has_it_for(served: ServedGateway) -> None:
    answer = await served.chat(
        **SPOKEN | {"audio": {"voice": "ethan", "format": "WAV"}},
        seed=-1, max_tokens=-1, top_k=-1, talker={"top_k": -1, "seed": -1, "max_tokens": -1},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    for role in (THINKER, TALKER):
        sampling = served.fakes[role].sessions[-1].segment.sampling[role]
        given = {each.name for each, _ in sampling.ListFields()}
        assert sampling.top_k == 0
        assert "max_tokens" not in given


async def test_ignored_fields_are_reported_with_an_error_too(served: ServedGateway) -> None:
    answer = await served.chat(color="red", temperature=-1)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")
    assert answer.headers[IGNORED] == "color"


async def test_ignored_fields_are_reported_with_a_stream(served: ServedGateway) -> None:
    answer = await served.chat(color="red", stream=True)
    assert answer.headers[IGNORED] == "color"
    assert answer.text.rstrip().endswith("data: [DONE]")


async def test_the_field_of_a_wrong_value_is_named_when_others_are_ignored(
    served: ServedGateway,
) -> None:
    said = [{"color": 1, **MESSAGES[0]}, {"role": "user", "content": 5, "color": 1}]
    answer = await served.chat(messages=said, color=1)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[1].content")


async def test_numbers_keep_their_digits_when_others_are_ignored(served: ServedGateway) -> None:
    answer = await served.chat(color=1, seed=2**63 + 1)
    assert answer.status_code == 200, answer.text
    sampling = served.fakes[THINKER].sessions[-1].segment.sampling[THINKER]
    assert sampling.seed == 2**63 + 1


async def test_ignored_fields_are_counted_each_time_and_logged_once(
    served: ServedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway.endpoints")
    series = f'antiphon_gateway_ignored_fields_total{{path="{PATH}"}}'
    before = await served.metric(series)
    for _ in range(3):
        await served.chat(never_sent_before=1, neither_was_this={"a": 1})
    assert await served.metric(series) == before + 6
    lines = [each.getMessage() for each in caplog.records if each.name == "gateway.endpoints"]
    assert sum("never_sent_before" in each for each in lines) == 1
    assert sum("neither_was_this" in each for each in lines) == 1


async def test_ignored_fields_are_refused_where_the_deployment_says_so() -> None:
    async with serve_gateway(unknown_fields="reject") as strict:
        said = [{"role": "user", "content": "Hi", "color": 1}]
        for fields, param in (
            ({"color": "red"}, "color"),
            ({"messages": said}, "messages[0].color"),
            ({"talker": {"stop": "a"}}, "talker.stop"),
        ):
            answer = await strict.chat(**fields)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        # What is not given is not refused.
        assert (await strict.chat(color=None, temperature="", min_p=0)).status_code == 200
        form = {"model": MODEL, "color": "red"}
        sent = await strict.http.post("/v1/audio/transcriptions", data=form, files={"file": file()})
        assert (sent.status_code, sent.json()["error"]["param"]) == (400, "color")


SPEECH: dict[str, tuple[dict[str, Any], str]] = {
    "Read-Aloud: fields of other servers": (
        {"stream": False, "language": "en", "user": "u", "speed": None, "instructions": None,
         "response_format": None}, "language"),
    "nari-labs/benchmarks": ({"stream": True, "non_streaming_mode": False}, "non_streaming_mode"),
    "capitals": ({"response_format": "MP3"}, ""),
    "Kokoro's clients": (
        {"lang_code": "a", "return_download_link": False, "volume_multiplier": 1.0},
        "lang_code, return_download_link, volume_multiplier"),
    "empty values": (
        {"speed": "", "response_format": "", "voice": "", "instructions": "", "language": "",
         "stream_format": "", "options": None}, ""),
    "vllm-omni's clients": ({"task_type": "CustomVoice", "language": "Auto"}, ""),
    "vLLM's users: -1": ({"seed": -1, "max_tokens": -1, "top_k": -1}, ""),
}  # fmt: skip


@pytest.mark.parametrize("sender", SPEECH)
async def test_a_text_is_spoken_whatever_else_its_sender_says(reader: Reader, sender: str) -> None:
    fields, ignored = SPEECH[sender]
    answer = await post(reader, input="Read.", **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/mpeg"
    assert answer.headers.get(IGNORED, "") == ignored


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ref_audio": "AAAA"}, "ref_audio"),
        ({"max_new_tokens": 5}, "max_new_tokens"),
        ({"sample_rate": 8000}, "sample_rate"),
        ({"instructions": "Whisper."}, "instructions"),
    ],
)
async def test_a_known_field_that_would_change_the_speech_is_refused(
    reader: Reader, fields: dict[str, Any], param: str
) -> None:
    answer = await post(reader, input="Read.", **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert "leave it out" in error["message"] or "use" in error["message"]


async def test_fields_of_other_servers_are_the_options_of_the_model(reader: Reader) -> None:
    fakes, gateway = reader
    told = gateway.fleet[SPEAKER].require()
    text = stage_pb2.OPTION_KIND_TEXT
    told.options.add(
        name="language", kind=text, max_bytes=9, choices=["auto", "english", "chinese"]
    )
    told.options.add(name="text_mode", kind=text, max_bytes=9, choices=["whole", "stream"])
    told.options.add(name="reference_text", kind=text, max_bytes=99)
    tell_anew(gateway)
    heard: list[dict[str, str]] = []
    try:
        for fields in (
            {"language": "en-US", "non_streaming_mode": True, "ref_text": "Said."},
            {"language": "Chinese", "non_streaming_mode": False},
            {"language": "auto"},
            {"language": "en", "options": {"language": "english"}},
        ):
            answer = await post(reader, input="Read.", **fields)
            assert answer.status_code == 200, answer.text
            assert IGNORED not in answer.headers
            options = fakes[SPEAKER].sessions[-1].segment.options
            heard.append({name: each.text for name, each in options.items()})
        wrong = await post(reader, input="Read.", language="klingon")
        twice = await post(reader, input="Read.", language="zh", options={"language": "english"})
    finally:
        told.ClearField("options")
        tell_anew(gateway)
    assert heard == [
        {"language": "english", "text_mode": "whole", "reference_text": "Said."},
        {"language": "Chinese", "text_mode": "stream"},
        {},
        {"language": "english"},
    ]
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "language")
    assert (twice.status_code, twice.json()["error"]["param"]) == (400, "language")
    assert "options.language has a different value" in twice.json()["error"]["message"]


async def refuse_text(session: Session) -> None:
    """As a stage that clones voices refuses a text beside a recording that does not fit."""
    await session.opened()
    await session.error(
        InvalidArgument(
            "options.reference_text: options.reference_audio is too short for it; "
            "options.reference_audio_s is no option",
            field="options.reference_text",
        )
    )


async def test_errors_name_the_fields_that_the_client_sent(reader: Reader) -> None:
    fakes, gateway = reader
    described = gateway.fleet[SPEAKER].require()
    described.options.add(
        name="reference_audio", kind=stage_pb2.OPTION_KIND_AUDIO, sample_rate_hz=8000, max_s=3
    )
    described.options.add(name="reference_text", kind=stage_pb2.OPTION_KIND_TEXT, max_bytes=99)
    tell_anew(gateway)
    script, fakes[SPEAKER].script = fakes[SPEAKER].script, refuse_text
    sound = base64.b64encode(said(0.5)).decode()
    try:
        whole = {"input": "Read.", "delivery": "whole", "response_format": "wav"}
        sent = await post(reader, **whole, ref_audio=sound, ref_text="Said.")
        named = {"reference_audio": {"data": sound}, "reference_text": "Said."}
        options = await post(reader, **whole, options=named)
    finally:
        fakes[SPEAKER].script = script
        described.ClearField("options")
        tell_anew(gateway)
    error = sent.json()["error"]
    assert (sent.status_code, error["param"]) == (400, "ref_text")
    assert error["message"] == (
        "ref_text: ref_audio is too short for it; options.reference_audio_s is no option"
    )
    error = options.json()["error"]
    assert error["param"] == "options.reference_text"
    assert error["message"].startswith("options.reference_text: options.reference_audio is")


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/chat/completions"])
async def test_a_field_with_the_name_of_an_option_is_refused_with_the_remedy(
    reader: Reader, path: str
) -> None:
    _, gateway = reader
    described = gateway.fleet[SPEAKER].require()
    described.options.add(name="pitch", kind=stage_pb2.OPTION_KIND_NUMBER, most=3)
    tell_anew(gateway)
    messages = [{"role": "user", "content": "Read."}]
    body: dict[str, Any] = {"input": "Read."} if "speech" in path else {"messages": messages}
    try:
        refused = await post(reader, path, **body, pitch=2)
        empty = await post(reader, path, **body, pitch=None)
    finally:
        described.ClearField("options")
        tell_anew(gateway)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "pitch")
    assert "use options.pitch" in error["message"]
    assert b"pitch" not in empty.content
    assert IGNORED not in empty.headers


@pytest.mark.parametrize(
    ("field", "remedy"), [("reference_audio", "ref_audio"), ("reference_text", "ref_text")]
)
async def test_options_of_a_voice_beside_the_options_are_refused_with_the_remedy(
    reader: Reader, field: str, remedy: str
) -> None:
    answer = await post(reader, input="Read.", **{field: "AAAA"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert f"send {remedy}" in error["message"]


TRANSCRIPTION: dict[str, tuple[dict[str, Any], str]] = {
    "new-api: empty form fields": (
        {"language": "", "prompt": "", "response_format": "", "temperature": "", "stream": "",
         "timestamp_granularities[]": "", "include[]": "", "chunking_strategy": "",
         "whatever": ""}, ""),
    "LobeChat: chunking_strategy": ({"chunking_strategy": "auto"}, ""),
    "whisper's clients": (
        {"task": "transcribe", "vad_filter": "true", "language": "auto"}, "vad_filter"),
    "vLLM's users": (
        {"seed": "-1", "top_k": "-1", "top_p": "0.9", "repetition_penalty": "1.0",
         "max_completion_tokens": "-1", "frequency_penalty": "0.0", "to_language": ""}, ""),
    "capitals": ({"response_format": "JSON"}, ""),
    "lists without brackets": ({"languages": ["", ""], "include": ""}, ""),
    "the same unknown field twice": ({"hotwords": ["a", "b"]}, "hotwords"),
}  # fmt: skip


async def transcribe(served: ServedGateway, **fields: Any) -> httpx.Response:
    form = {"model": MODEL, **fields}
    return await served.http.post("/v1/audio/transcriptions", data=form, files={"file": file()})


@pytest.mark.parametrize("sender", TRANSCRIPTION)
async def test_a_recording_is_transcribed_whatever_else_its_sender_says(
    served: ServedGateway, sender: str
) -> None:
    fields, ignored = TRANSCRIPTION[sender]
    answer = await transcribe(served, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == "Hello wörld!"
    assert answer.headers.get(IGNORED, "") == ignored


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"include": "logprobs"}, "include"),
        ({"include[]": "logprobs"}, "include"),
        ({"task": "translate"}, "task"),
        ({"to_language": "de"}, "to_language"),
        ({"temperature": ["0", "1"]}, "temperature"),
    ],
)
async def test_a_known_field_that_would_change_the_transcript_is_refused(
    served: ServedGateway, fields: dict[str, Any], param: str
) -> None:
    answer = await transcribe(served, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
