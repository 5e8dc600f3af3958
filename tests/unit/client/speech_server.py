"""A real SpeechService on a free port, whose answers the test writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event as Flag

import grpc

from antiphon.errors import AntiphonError, ErrorCode
from antiphon.v1 import chunk_pb2, converse_pb2, session_pb2, speech_pb2, speech_pb2_grpc, usage_pb2
from antiphon.wire.convert import error_to_proto
from antiphon.wire.status import ERROR_METADATA_KEY

STATUS = {ErrorCode.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT}

Responses = Iterator[speech_pb2.GenerateResponse]
Answer = Callable[[speech_pb2.GenerateRequest, "Speech"], Responses]
Talk = Callable[
    [Iterator[converse_pb2.ConverseRequest], "Speech"], Iterator[converse_pb2.ConverseResponse]
]


def no_talk(
    requests: Iterator[converse_pb2.ConverseRequest], server: Speech
) -> Iterator[converse_pb2.ConverseResponse]:
    raise NotImplementedError


@dataclass
class Speech(speech_pb2_grpc.SpeechServiceServicer):
    """Answers with whatever `answer` yields; remembers what it was asked."""

    answer: Answer
    talk: Talk = no_talk
    openings: list[converse_pb2.OpenConversation] = field(default_factory=list)
    requests: list[speech_pb2.GenerateRequest] = field(default_factory=list)
    cancelled: Flag = field(default_factory=Flag)
    hang: Flag = field(default_factory=Flag)
    time_remaining_s: float | None = None
    metadata: dict[str, str | bytes] = field(default_factory=dict)
    address: str = ""
    port: int = 0

    def GetServerInfo(
        self, request: speech_pb2.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> speech_pb2.GetServerInfoResponse:
        model = speech_pb2.ModelInfo(
            name="tiny",
            voices=["ethan"],
            sample_rate_hz=24000,
            input_kinds=["text", "audio"],
            output_kinds=["text", "audio"],
            context_limit=512,
        )
        return speech_pb2.GetServerInfoResponse(
            version="9.9", models=[model], features=["generate"]
        )

    def Generate(
        self, request: speech_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Responses:
        self.requests.append(request)
        self.time_remaining_s = context.time_remaining()
        self.metadata = dict(context.invocation_metadata())
        context.add_callback(self._ended)
        try:
            yield from self.answer(request, self)
        except AntiphonError as error:
            _abort(context, error)

    def Converse(
        self,
        request_iterator: Iterator[converse_pb2.ConverseRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[converse_pb2.ConverseResponse]:
        try:
            yield from self.talk(request_iterator, self)
        except AntiphonError as error:
            _abort(context, error)

    def _ended(self) -> None:
        self.cancelled.set()
        self.hang.set()


def _abort(context: grpc.ServicerContext, error: AntiphonError) -> None:
    metadata = ((ERROR_METADATA_KEY, error_to_proto(error).SerializeToString()),)
    context.set_trailing_metadata(metadata)
    context.abort(STATUS.get(error.code, grpc.StatusCode.UNAVAILABLE), error.message)


def started(seed: int | None = None, model: str = "tiny") -> speech_pb2.GenerateResponse:
    """Without a `seed` the answer cannot be continued."""
    return speech_pb2.GenerateResponse(
        started=speech_pb2.GenerateStarted(
            session_id="s1", model=model, sample_rate_hz=24000, drawn_seed=seed
        )
    )


def text(words: str, *ids: int) -> speech_pb2.GenerateResponse:
    return speech_pb2.GenerateResponse(text=speech_pb2.TextDelta(text=words, token_ids=ids))


def audio(first_sample: int, pcm16: bytes) -> speech_pb2.GenerateResponse:
    return speech_pb2.GenerateResponse(
        audio=speech_pb2.AudioDelta(first_sample=first_sample, pcm16=pcm16)
    )


def finished() -> speech_pb2.GenerateResponse:
    return speech_pb2.GenerateResponse(
        finished=speech_pb2.GenerateFinished(
            finish_reason=chunk_pb2.FINISH_REASON_LENGTH,
            usage=usage_pb2.Usage(prompt_tokens=3, completion_tokens=2),
            reports={"talker": session_pb2.SegmentReport(busy_s=0.5, last_output_s=0.75)},
        )
    )


def greeting(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
    """A whole answer: two pieces of text and two of audio, four samples in all."""
    yield started()
    yield text("Hel", 7)
    yield audio(0, b"\x01\x00\x02\x00")
    yield text("lo", 8)
    yield audio(2, b"\x03\x00\x04\x00")
    yield finished()
