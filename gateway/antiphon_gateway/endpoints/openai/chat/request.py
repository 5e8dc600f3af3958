"""Converts an OpenAI chat request to an order. All checks that don't depend on a stage are done
here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from antiphon.errors import InvalidArgument
from antiphon.values.conversation import ToolChoice
from antiphon.values.sampling import INPUT_STAGE, SamplingRequest
from antiphon.values.segment import Delivery
from antiphon.values.template import TemplateValue, check_template_variables
from antiphon_gateway.admission.priority import Priority
from antiphon_gateway.endpoints.http.fields import (
    Unsupported,
    check_unsupported,
    decode_fields,
    or_all,
    or_unset,
)
from antiphon_gateway.endpoints.http.json_body import invalid
from antiphon_gateway.endpoints.http.options import options_from_json, options_outside
from antiphon_gateway.endpoints.http.stage_sampling import (
    body_decoder,
    stage_sampling,
    without_sampling,
)
from antiphon_gateway.endpoints.http.voice import voice_name
from antiphon_gateway.endpoints.openai.chat.answer import ChatAnswer
from antiphon_gateway.endpoints.openai.chat.answer_schema import Completion
from antiphon_gateway.endpoints.openai.chat.choice import AnswerHead
from antiphon_gateway.endpoints.openai.chat.messages import read_messages
from antiphon_gateway.endpoints.openai.chat.schema import (
    ChatRequest,
    NamedTool,
    ObjectForm,
    ResponseForm,
    SchemaForm,
    StreamOptions,
)
from antiphon_gateway.endpoints.openai.chunk_policy import read_chunk_policy
from antiphon_gateway.endpoints.openai.endpoint import (
    EVENTS,
    JSON,
    EndpointMessages,
    JsonEndpoint,
    RequestContext,
)
from antiphon_gateway.media.attachments import name_field
from antiphon_gateway.media.audio_formats import FORMATS
from antiphon_gateway.media.encoding import AudioEncoding, check_format
from antiphon_gateway.orders.order import Order
from antiphon_gateway.orders.tools import choose_tools, read_functions
from antiphon_gateway.outputs import AUDIO, KNOWN, OUTPUTS, TEXT

FLEX = "flex"
"""OpenAI's name for the service tier with the lowest priority."""
_SOUND = "leave it out, and send the soundtrack of a video as a separate recording (input_audio)"
_SCHEMA = "use response_format"
# OpenAI's fields, followed by vLLM's.
UNSUPPORTED: Mapping[str, Unsupported] = {
    "frequency_penalty": Unsupported((0,)),
    "presence_penalty": Unsupported((0,)),
    "logit_bias": Unsupported(),
    "functions": Unsupported(remedy="use tools"),
    "function_call": Unsupported(("none", "auto"), "use tool_choice"),
    "prediction": Unsupported(),
    "web_search_options": Unsupported(),
    "moderation": Unsupported(),
    "reasoning_effort": Unsupported(("none",)),
    "verbosity": Unsupported(("medium",)),
    "service_tier": Unsupported(
        ("auto", "default", FLEX),
        "use 'flex' for the lowest priority, or an API key with a higher priority",
    ),
    "store": Unsupported((False,)),
    "use_audio_in_video": Unsupported((False,), _SOUND),
    "mm_processor_kwargs": Unsupported(({"use_audio_in_video": False},), _SOUND),
    "min_p": Unsupported((0,)),
    "min_tokens": Unsupported((0,)),
    "length_penalty": Unsupported((1,)),
    "best_of": Unsupported((1,)),
    "use_beam_search": Unsupported((False,)),
    "ignore_eos": Unsupported((False,)),
    "stop_token_ids": Unsupported(remedy="use stop"),
    "bad_words": Unsupported(),
    "allowed_token_ids": Unsupported(),
    "logits_processors": Unsupported(),
    "include_stop_str_in_output": Unsupported((False,)),
    "skip_special_tokens": Unsupported((True,)),
    "spaces_between_special_tokens": Unsupported((True,)),
    "truncate_prompt_tokens": Unsupported((-1,)),
    "prompt_logprobs": Unsupported(),
    "echo": Unsupported((False,)),
    "add_generation_prompt": Unsupported((True,)),
    "continue_final_message": Unsupported((False,)),
    "add_special_tokens": Unsupported((False,)),
    "documents": Unsupported(remedy="put documents into a message"),
    "chat_template": Unsupported(remedy="the template of the checkpoint is used"),
    "guided_json": Unsupported(remedy=_SCHEMA),
    "guided_regex": Unsupported(remedy=_SCHEMA),
    "guided_choice": Unsupported(remedy=_SCHEMA),
    "guided_grammar": Unsupported(remedy=_SCHEMA),
    "structured_outputs": Unsupported(remedy=_SCHEMA),
    "return_token_ids": Unsupported((False,)),
    "return_tokens_as_token_ids": Unsupported((False,)),
    "thinking_token_budget": Unsupported(),
    # These fields don't affect the answer.
    "include_reasoning": Unsupported(any_value=True),
    "priority": Unsupported(any_value=True),
    "request_id": Unsupported(any_value=True),
    "cache_salt": Unsupported(any_value=True),
}
"""Fields that are known but not supported."""
ANY_OBJECT = '{"type": "object"}'
_FORMATS = {"pcm16": "pcm", **{name: name for name in FORMATS if name != "pcm"}}
"""OpenAI's format names in this endpoint."""


def read_chat(body: bytes, visit: RequestContext) -> tuple[Order, ChatAnswer]:
    """Parse a request body. Raises `InvalidArgument` or `NotImplementedYet` with the field."""
    decoder = body_decoder(ChatRequest, visit.sampling_stages)
    unsupported = {
        **options_outside(visit.options),
        **UNSUPPORTED,
        **without_sampling(visit.stages),
    }
    chat = decode_fields(decoder, body, unsupported, visit.ignored)
    check_unsupported(chat, UNSUPPORTED)
    if not chat.model:
        raise invalid("model", "is empty")
    outputs = _outputs(chat)
    messages, attachments = read_messages(chat.messages, visit.spoken)
    if chat.stream_options not in (None, StreamOptions()) and not chat.stream:
        raise invalid("stream_options", "is only allowed with stream: true")
    tools, tool_choice = _tools(chat)
    order = Order(
        model=chat.model,
        messages=messages,
        tools=tools,
        tool_choice=tool_choice,
        template=_template(chat),
        attachments=attachments,
        outputs=outputs,
        voice=_voice(chat, visit.voices),
        sampling={INPUT_STAGE: _sampling(chat), **stage_sampling(chat, visit.sampling_stages)},
        delivery=None if chat.delivery is None else Delivery(chat.delivery),
        chunk_policy=read_chunk_policy(chat.chunk_policy),
        options=options_from_json(chat.options),
        choices=_choices(chat, visit.max_choices),
        priority=Priority.LOW if chat.service_tier == FLEX else Priority.HIGH,
        field_names={"voice": "audio.voice", "json_schema": "response_format"},
    )
    head = AnswerHead(
        id=f"chatcmpl-{visit.answer_id}",
        created=int(time.time()),
        audio_id=f"audio_{visit.answer_id}" if AUDIO in outputs else "",
        encoding=_encoding(chat),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        logprobs=bool(chat.logprobs),
        spoken=visit.spoken,
        choices=order.choices,
    )
    return order, ChatAnswer(head, streamed=bool(chat.stream))


def _template(chat: ChatRequest) -> Mapping[str, TemplateValue]:
    given = chat.chat_template_kwargs or {}
    check_template_variables(given)
    return given


def _tools(chat: ChatRequest) -> tuple[tuple[str, ...], ToolChoice]:
    functions = [each.function for each in chat.tools or ()]
    tools = read_functions(functions, "tools[{}].function")
    if tools and _json_schema(chat.response_format) is not None:
        raise invalid(
            "response_format",
            "can't be combined with tools, because an answer that follows a JSON schema can't "
            "call functions",
        )
    choice, parallel = chat.tool_choice, chat.parallel_tool_calls
    if isinstance(choice, NamedTool):
        return choose_tools(tools, "function", choice.function.name, parallel=parallel)
    return choose_tools(tools, choice or None, "", parallel=parallel)


def _choices(chat: ChatRequest, most: int) -> int:
    if chat.n is not None and not 1 <= chat.n <= most:
        raise invalid("n", f"must be from 1 to {most} (gateway.limits.max_choices)")
    return chat.n or 1


def _outputs(chat: ChatRequest) -> frozenset[str]:
    modalities = chat.modalities or (TEXT,)
    if unknown := [each for each in modalities if each not in OUTPUTS]:
        raise invalid("modalities", f"unknown modality {unknown[0]!r}; {KNOWN}")
    if AUDIO in modalities and chat.audio is None:
        raise invalid("audio", "is required if modalities contains 'audio'")
    if AUDIO not in modalities and chat.audio is not None:
        raise invalid("audio", "is only allowed if modalities contains 'audio'")
    return frozenset(modalities)


def _voice(chat: ChatRequest, voices: tuple[str, ...]) -> str:
    if chat.audio is None:
        return ""
    voice = voice_name(chat.audio.voice)
    # An option that is an object is a recording, which also counts as a voice.
    recorded = any(bytes(each).lstrip().startswith(b"{") for each in chat.options.values())
    if voices and not voice and not recorded:
        raise invalid("audio.voice", f"is missing or empty; use one of: {', '.join(voices)}")
    return voice


def _encoding(chat: ChatRequest) -> AudioEncoding | None:
    if chat.audio is None:
        return None
    name = chat.audio.format.strip().lower()
    check_format(name, _FORMATS, "audio.format")
    if chat.stream and name != "pcm16":
        raise invalid("audio.format", "must be 'pcm16' if stream is true")
    return AudioEncoding(_FORMATS[name], whole=not chat.stream)


def _sampling(chat: ChatRequest) -> SamplingRequest:
    name, limit = _max_tokens(chat)
    stop = (chat.stop,) if chat.stop and isinstance(chat.stop, str) else chat.stop or ()
    try:
        return SamplingRequest(
            temperature=chat.temperature,
            top_k=or_all(chat.top_k),
            top_p=chat.top_p,
            repetition_penalty=chat.repetition_penalty,
            seed=or_unset(chat.seed),
            max_tokens=limit,
            stop=stop,
            top_logprobs=_top_logprobs(chat),
            json_schema=_json_schema(chat.response_format),
        )
    except InvalidArgument as error:
        if error.field == "max_tokens":
            raise invalid(name, error.message.partition(": ")[2]) from None
        name_field(error, {"json_schema": "response_format"})
        raise


def _json_schema(form: ResponseForm | None) -> str | None:
    match form:
        case ObjectForm():
            return ANY_OBJECT
        case SchemaForm(asked) if asked.schema is not None:
            return msgspec.json.encode(asked.schema).decode()
        case SchemaForm():
            return ANY_OBJECT
    return None


def _max_tokens(chat: ChatRequest) -> tuple[str, int | None]:
    """Return the limit and the name of the field that sets it."""
    old, new = or_unset(chat.max_tokens), or_unset(chat.max_completion_tokens)
    if old is not None and new is not None and old != new:
        raise invalid("max_tokens", "differs from max_completion_tokens; use only one of them")
    return ("max_tokens", old) if new is None else ("max_completion_tokens", new)


def _top_logprobs(chat: ChatRequest) -> int | None:
    """Return the number of most likely tokens per position. Returns None if `logprobs`
    isn't set.
    """
    if chat.logprobs:
        return chat.top_logprobs or 0
    if chat.top_logprobs:
        raise invalid("top_logprobs", "is only allowed with logprobs: true")
    return None


CHAT = JsonEndpoint(
    "/v1/chat/completions",
    read_chat,
    EndpointMessages(
        "Generates an answer to a conversation, as text, speech or both.",
        ChatRequest,
        {JSON: Completion, EVENTS: None},
        example={
            "model": "MODEL",
            "messages": [{"role": "user", "content": "What is antiphon?"}],
            "modalities": ["text", "audio"],
            "audio": {"voice": "alloy", "format": "wav"},
        },
    ),
)
