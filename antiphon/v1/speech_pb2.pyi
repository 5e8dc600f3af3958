from antiphon.v1 import chunk_pb2 as _chunk_pb2
from antiphon.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "models", "features")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    version: str
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("name", "voices", "sample_rate_hz", "input_kinds", "output_kinds", "context_limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    INPUT_KINDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_KINDS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    voices: _containers.RepeatedScalarFieldContainer[str]
    sample_rate_hz: int
    input_kinds: _containers.RepeatedScalarFieldContainer[str]
    output_kinds: _containers.RepeatedScalarFieldContainer[str]
    context_limit: int
    def __init__(self, name: _Optional[str] = ..., voices: _Optional[_Iterable[str]] = ..., sample_rate_hz: _Optional[int] = ..., input_kinds: _Optional[_Iterable[str]] = ..., output_kinds: _Optional[_Iterable[str]] = ..., context_limit: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "parts")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    role: str
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, role: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("text", "audio")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    text: str
    audio: AudioPart
    def __init__(self, text: _Optional[str] = ..., audio: _Optional[_Union[AudioPart, _Mapping]] = ...) -> None: ...

class AudioPart(_message.Message):
    __slots__ = ("wav",)
    WAV_FIELD_NUMBER: _ClassVar[int]
    wav: bytes
    def __init__(self, wav: _Optional[bytes] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model", "messages", "modalities", "voice", "sampling", "delivery", "chunk_policy", "include_ids")
    class SamplingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _session_pb2.Sampling
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_session_pb2.Sampling, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MODALITIES_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    CHUNK_POLICY_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_IDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    modalities: _containers.RepeatedScalarFieldContainer[str]
    voice: str
    sampling: _containers.MessageMap[str, _session_pb2.Sampling]
    delivery: _session_pb2.Delivery
    chunk_policy: _session_pb2.ChunkPolicy
    include_ids: bool
    def __init__(self, model: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., modalities: _Optional[_Iterable[str]] = ..., voice: _Optional[str] = ..., sampling: _Optional[_Mapping[str, _session_pb2.Sampling]] = ..., delivery: _Optional[_Union[_session_pb2.Delivery, str]] = ..., chunk_policy: _Optional[_Union[_session_pb2.ChunkPolicy, _Mapping]] = ..., include_ids: bool = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "text", "audio", "finished", "error")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    started: GenerateStarted
    text: TextDelta
    audio: AudioDelta
    finished: GenerateFinished
    error: _session_pb2.SessionError
    def __init__(self, started: _Optional[_Union[GenerateStarted, _Mapping]] = ..., text: _Optional[_Union[TextDelta, _Mapping]] = ..., audio: _Optional[_Union[AudioDelta, _Mapping]] = ..., finished: _Optional[_Union[GenerateFinished, _Mapping]] = ..., error: _Optional[_Union[_session_pb2.SessionError, _Mapping]] = ...) -> None: ...

class GenerateStarted(_message.Message):
    __slots__ = ("session_id", "model", "sample_rate_hz")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    model: str
    sample_rate_hz: int
    def __init__(self, session_id: _Optional[str] = ..., model: _Optional[str] = ..., sample_rate_hz: _Optional[int] = ...) -> None: ...

class TextDelta(_message.Message):
    __slots__ = ("text", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class AudioDelta(_message.Message):
    __slots__ = ("pcm16", "first_sample", "float32", "codes")
    PCM16_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FLOAT32_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    pcm16: bytes
    first_sample: int
    float32: bytes
    codes: bytes
    def __init__(self, pcm16: _Optional[bytes] = ..., first_sample: _Optional[int] = ..., float32: _Optional[bytes] = ..., codes: _Optional[bytes] = ...) -> None: ...

class GenerateFinished(_message.Message):
    __slots__ = ("finish_reason", "usage", "reports")
    class ReportsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _session_pb2.SegmentReport
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_session_pb2.SegmentReport, _Mapping]] = ...) -> None: ...
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _chunk_pb2.FinishReason
    usage: Usage
    reports: _containers.MessageMap[str, _session_pb2.SegmentReport]
    def __init__(self, finish_reason: _Optional[_Union[_chunk_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., reports: _Optional[_Mapping[str, _session_pb2.SegmentReport]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "prompt_audio_tokens", "prompt_cached_tokens", "completion_tokens", "completion_audio_frames")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_AUDIO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_AUDIO_FRAMES_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    prompt_audio_tokens: int
    prompt_cached_tokens: int
    completion_tokens: int
    completion_audio_frames: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., prompt_audio_tokens: _Optional[int] = ..., prompt_cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., completion_audio_frames: _Optional[int] = ...) -> None: ...

class ConverseRequest(_message.Message):
    __slots__ = ("open", "pcm16", "input_finished", "cancel_segment")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PCM16_FIELD_NUMBER: _ClassVar[int]
    INPUT_FINISHED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    open: GenerateRequest
    pcm16: bytes
    input_finished: _session_pb2.InputFinished
    cancel_segment: _session_pb2.CancelSegment
    def __init__(self, open: _Optional[_Union[GenerateRequest, _Mapping]] = ..., pcm16: _Optional[bytes] = ..., input_finished: _Optional[_Union[_session_pb2.InputFinished, _Mapping]] = ..., cancel_segment: _Optional[_Union[_session_pb2.CancelSegment, _Mapping]] = ...) -> None: ...

class ConverseResponse(_message.Message):
    __slots__ = ("segment", "event")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    segment: int
    event: GenerateResponse
    def __init__(self, segment: _Optional[int] = ..., event: _Optional[_Union[GenerateResponse, _Mapping]] = ...) -> None: ...
