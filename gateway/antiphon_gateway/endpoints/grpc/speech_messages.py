"""Converts a `GenerateRequest` to an order, and events to `GenerateResponse` messages. This module
performs no I/O.
"""

from __future__ import annotations

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.v1 import functions_pb2, options_pb2, speech_pb2, usage_pb2
from antiphon.values.answer import Usage
from antiphon.values.conversation import (
    FUNCTION_NAME,
    ConversationMessage,
    Part,
    TextPart,
    ToolCall,
    ToolChoice,
    read_template_variables,
)
from antiphon.values.logprobs import TokenLogprob
from antiphon.wire.convert import (
    delivery_from_proto,
    finish_reason_to_proto,
    policy_from_proto,
    sampling_from_proto,
)
from antiphon_gateway.failover.resumed import HeldPart
from antiphon_gateway.media.attachments import Attachments
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.media.audio_out import to_pcm16
from antiphon_gateway.media.options_in import MAX_OPTIONS, OptionInput
from antiphon_gateway.media.vision_in import File
from antiphon_gateway.orders.order import SEED_BITS, Order, draw_seed
from antiphon_gateway.orders.tools import choose_tools, read_arguments, read_function_texts
from antiphon_gateway.outputs import KNOWN, OUTPUTS
from antiphon_gateway.sessions.events import (
    AudioProduced,
    Event,
    ImageProduced,
    SegmentFinished,
    SegmentStarted,
    StepsAdvanced,
    TextProduced,
    ToolCallsProduced,
)

MAX_ROLES = 16
MAX_MODALITIES = 16


def read_generate(
    request: speech_pb2.GenerateRequest, timeout_s: float, *, max_parts: int
) -> Order:
    """Convert a request to an order. If a field is invalid, `InvalidArgument` is raised with that
    field.

    Repeated elements are counted before any of them are parsed.
    """
    _check_counts(request, max_parts)
    outputs = frozenset(request.modalities)
    if outputs - OUTPUTS:
        raise InvalidArgument(
            f"modalities: {KNOWN}; leave it empty for all outputs of the model",
            field="modalities",
        )
    messages, attachments = _read_messages(request)
    tools, tool_choice = _read_functions(request)
    return Order(
        model=request.model,
        messages=messages,
        attachments=attachments,
        outputs=outputs,
        voice=request.voice,
        sampling={
            stage: sampling_from_proto(settings, field=f"sampling.{stage}".rstrip("."))
            for stage, settings in request.sampling.items()
        },
        delivery=delivery_from_proto(request.delivery),
        chunk_policy=(
            policy_from_proto(request.chunk_policy) if request.HasField("chunk_policy") else None
        ),
        options={name: _read_option(name, value) for name, value in request.options.items()},
        timeout_s=timeout_s,
        tools=tools,
        tool_choice=tool_choice,
        drawn_seed=_seed_of(request),
        template=read_template_variables((request.chat_template_kwargs or "{}").encode()),
        field_names={"tools": "functions", "tool_choice": "function_choice"},
    )


def read_delivered(request: speech_pb2.GenerateRequest) -> HeldPart | None:
    """Return the part of the answer that the client already has. For a new request,
    returns None.
    """
    if not request.HasField("delivered"):
        return None
    given = request.delivered
    return HeldPart(
        characters=given.characters,
        text_sha256=given.text_sha256,
        ids=given.token_ids,
        logprobs=given.logprobs,
        samples=given.samples,
        frame_values=given.codes,
        images=given.images,
    )


def _seed_of(request: speech_pb2.GenerateRequest) -> int:
    """Return the seed for stages that don't have one. If an answer is being continued, this is the
    seed of that answer.
    """
    if not request.HasField("delivered"):
        return draw_seed()
    seed = request.delivered.drawn_seed
    if seed >> SEED_BITS:
        raise InvalidArgument(
            f"delivered.drawn_seed: must be below 2^{SEED_BITS}; use the value from `started`",
            field="delivered.drawn_seed",
        )
    return seed


def _read_functions(
    request: speech_pb2.GenerateRequest,
) -> tuple[tuple[str, ...], ToolChoice]:
    """Return the functions and the rules for calling them."""
    choice = request.function_choice
    mode = "function" if choice.mode == "required" and choice.name else choice.mode
    tools = read_function_texts(request.functions, "functions[{}]")
    return choose_tools(
        tools, mode or None, choice.name, parallel=not choice.one_call, field="function_choice"
    )


def _check_counts(request: speech_pb2.GenerateRequest, max_parts: int) -> None:
    for name, items, most in (
        ("modalities", request.modalities, MAX_MODALITIES),
        ("sampling", request.sampling, MAX_ROLES),
        ("options", request.options, MAX_OPTIONS),
    ):
        if len(items) > most:
            raise InvalidArgument(f"{name}: must have at most {most} entries", field=name)
    parts = 0
    for index, message in enumerate(request.messages):
        # Here, a message without parts counts as one part. It is rejected later.
        parts += max(1, len(message.parts) + len(message.calls))
        if parts > max_parts:
            field = f"messages[{index}]"
            raise InvalidArgument(
                f"{field}: the request has more than {max_parts} parts", field=field
            )


def _read_option(name: str, option: options_pb2.OptionInput) -> OptionInput:
    field = f"options.{name}"
    match option.WhichOneof("value"):
        case "text":
            return option.text
        case "number":
            return option.number
        case "audio":
            return Recording(field, option.audio.wav)
        case _:
            raise InvalidArgument(f"{field}: is empty", field=field)


def write_event(event: Event, *, include_ids: bool) -> speech_pb2.GenerateResponse:
    """Convert an event to a message."""
    match event:
        case SegmentStarted():
            started = speech_pb2.GenerateStarted(
                session_id=event.session_id,
                model=event.model,
                sample_rate_hz=event.sample_rate_hz,
                drawn_seed=event.drawn_seed,
            )
            return speech_pb2.GenerateResponse(started=started)
        case TextProduced():
            ids = event.ids.tolist() if include_ids else ()
            logprobs = map(_write_logprob, event.logprobs)
            text = speech_pb2.TextDelta(text=event.text, token_ids=ids, logprobs=logprobs)
            return speech_pb2.GenerateResponse(text=text)
        case AudioProduced():
            return speech_pb2.GenerateResponse(audio=_write_audio(event, include_ids))
        case ImageProduced():
            images = [
                speech_pb2.MadeImage(file=each.file, media_type=each.media_type)
                for each in event.images
            ]
            return speech_pb2.GenerateResponse(image=speech_pb2.ImageDelta(images=images))
        case ToolCallsProduced():
            return speech_pb2.GenerateResponse(calls=_write_calls(event))
        case StepsAdvanced(stage, done, due):
            progress = speech_pb2.StepProgress(stage=stage, done=done, due=due)
            return speech_pb2.GenerateResponse(progress=progress)
        case SegmentFinished():
            return speech_pb2.GenerateResponse(finished=_write_finished(event))


def _write_calls(event: ToolCallsProduced) -> speech_pb2.FunctionCallDelta:
    return speech_pb2.FunctionCallDelta(
        first=event.pieces[0].index,
        calls=[
            functions_pb2.FunctionCall(id=each.id, name=each.name, arguments=each.arguments)
            for each in event.calls
        ],
        pieces=[
            speech_pb2.FunctionCallPiece(
                index=each.index, id=each.id, name=each.name, arguments=each.arguments
            )
            for each in event.pieces
        ],
    )


def _write_logprob(token: TokenLogprob) -> speech_pb2.TokenLogprob:
    return speech_pb2.TokenLogprob(
        token_id=token.token_id,
        token=token.token_bytes,
        logprob=token.logprob,
        top=map(_write_logprob, token.top),
    )


def _write_audio(event: AudioProduced, include_ids: bool) -> speech_pb2.AudioDelta:
    audio = speech_pb2.AudioDelta(pcm16=to_pcm16(event.samples), first_sample=event.first_sample)
    if include_ids:
        audio.float32 = np.asarray(event.samples, dtype="<f4").tobytes()
        if event.frames.dtype.kind == "f":
            audio.latents = np.asarray(event.frames, dtype="<f4").tobytes()
        else:
            audio.codes = np.asarray(event.frames, dtype="<u2").tobytes()
    return audio


def _write_finished(event: SegmentFinished) -> speech_pb2.GenerateFinished:
    return speech_pb2.GenerateFinished(
        finish_reason=finish_reason_to_proto(event.finish_reason),
        usage=_write_usage(event.usage),
        reports=event.reports,
    )


def _read_messages(
    request: speech_pb2.GenerateRequest,
) -> tuple[tuple[ConversationMessage, ...], Attachments]:
    """Return the messages and their attachments. The parts of messages refer to attachments by
    index.
    """
    if not request.messages:
        raise InvalidArgument("messages: is empty", field="messages")
    attachments = Attachments()
    messages = []
    for index, message in enumerate(request.messages):
        path = f"messages[{index}]"
        if message.role not in ("system", "user", "assistant", "tool"):
            raise InvalidArgument(
                f"{path}.role: must be system, user, assistant or tool, got {message.role!r}",
                field=f"{path}.role",
            )
        calls = _read_calls(message, path)
        if not (message.parts or calls or message.role == "tool"):
            raise InvalidArgument(f"{path}.parts: is empty", field=f"{path}.parts")
        parts = tuple(
            _read_part(part, message.role, f"{path}.parts[{place}]", attachments)
            for place, part in enumerate(message.parts)
        )
        messages.append(
            ConversationMessage(message.role, parts, calls, message.call_id)  # type: ignore[arg-type]
        )
    return tuple(messages), attachments


def _read_calls(message: speech_pb2.Message, path: str) -> tuple[ToolCall, ...]:
    """Return the calls in an assistant message. Raises `InvalidArgument` if any other message
    contains calls.
    """
    if message.calls and message.role != "assistant":
        raise InvalidArgument(
            f"{path}.calls: only allowed in assistant messages, got the role {message.role}",
            field=f"{path}.calls",
        )
    if (message.role == "tool") != bool(message.call_id):
        field = f"{path}.call_id"
        raise InvalidArgument(
            f"{field}: is required for messages with the role tool, and only allowed there",
            field=field,
        )
    calls = []
    for index, call in enumerate(message.calls):
        at = f"{path}.calls[{index}]"
        if FUNCTION_NAME.fullmatch(call.name) is None:
            raise InvalidArgument(
                f"{at}.name: must be 1 to 64 letters, digits, _ or -", field=f"{at}.name"
            )
        arguments = read_arguments(call.arguments, f"{at}.arguments")
        calls.append(ToolCall(call.id, call.name, arguments))
    return tuple(calls)


def _read_part(part: speech_pb2.Part, role: str, path: str, attachments: Attachments) -> Part:
    kind = part.WhichOneof("content")
    if kind not in (None, "text") and role != "user":
        raise InvalidArgument(f"{path}: {kind} is only allowed in user messages", field=path)
    match kind:
        case "text":
            return TextPart(part.text)
        case "audio":
            return attachments.add_recording(Recording(f"{path}.audio.wav", part.audio.wav))
        case "image":
            return attachments.add_image(File(f"{path}.image.file", part.image.file))
        case "video":
            return attachments.add_video(File(f"{path}.video.file", part.video.file))
        case _:
            raise InvalidArgument(f"{path}: is empty", field=path)


def _write_usage(usage: Usage) -> usage_pb2.Usage:
    return usage_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        prompt_audio_tokens=usage.prompt_audio_tokens,
        prompt_image_tokens=usage.prompt_image_tokens,
        prompt_cached_tokens=usage.prompt_cached_tokens,
        completion_tokens=usage.completion_tokens,
        completion_audio_frames=usage.completion_audio_frames,
        completion_image_tokens=usage.completion_image_tokens,
    )
