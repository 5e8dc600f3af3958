from antiphon.v1 import chunk_pb2 as _chunk_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Delivery(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELIVERY_UNSPECIFIED: _ClassVar[Delivery]
    DELIVERY_STREAM: _ClassVar[Delivery]
    DELIVERY_WHOLE: _ClassVar[Delivery]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_IMPLEMENTED: _ClassVar[ErrorCode]
    ERROR_CODE_RESOURCE_EXHAUSTED: _ClassVar[ErrorCode]
    ERROR_CODE_FAILED_PRECONDITION: _ClassVar[ErrorCode]
    ERROR_CODE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_DEADLINE_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_CANCELLED: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_DATA_LOSS: _ClassVar[ErrorCode]
DELIVERY_UNSPECIFIED: Delivery
DELIVERY_STREAM: Delivery
DELIVERY_WHOLE: Delivery
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INVALID_ARGUMENT: ErrorCode
ERROR_CODE_NOT_FOUND: ErrorCode
ERROR_CODE_NOT_IMPLEMENTED: ErrorCode
ERROR_CODE_RESOURCE_EXHAUSTED: ErrorCode
ERROR_CODE_FAILED_PRECONDITION: ErrorCode
ERROR_CODE_UNAVAILABLE: ErrorCode
ERROR_CODE_DEADLINE_EXCEEDED: ErrorCode
ERROR_CODE_CANCELLED: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_DATA_LOSS: ErrorCode

class SessionError(_message.Message):
    __slots__ = ("code", "message", "field", "stage", "edge", "retry_after_s")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    field: str
    stage: str
    edge: str
    retry_after_s: float
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., stage: _Optional[str] = ..., edge: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class SessionOpen(_message.Message):
    __slots__ = ("session_id", "attempt", "pipeline", "checkpoint_fingerprint", "routes", "limits")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    attempt: int
    pipeline: str
    checkpoint_fingerprint: str
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    limits: SessionLimits
    def __init__(self, session_id: _Optional[str] = ..., attempt: _Optional[int] = ..., pipeline: _Optional[str] = ..., checkpoint_fingerprint: _Optional[str] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ..., limits: _Optional[_Union[SessionLimits, _Mapping]] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("edge", "destinations")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    edge: str
    destinations: _containers.RepeatedCompositeFieldContainer[Destination]
    def __init__(self, edge: _Optional[str] = ..., destinations: _Optional[_Iterable[_Union[Destination, _Mapping]]] = ...) -> None: ...

class Destination(_message.Message):
    __slots__ = ("reply", "stage")
    REPLY_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    reply: ReplyTarget
    stage: StageTarget
    def __init__(self, reply: _Optional[_Union[ReplyTarget, _Mapping]] = ..., stage: _Optional[_Union[StageTarget, _Mapping]] = ...) -> None: ...

class ReplyTarget(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StageTarget(_message.Message):
    __slots__ = ("address", "boot_id")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    address: str
    boot_id: str
    def __init__(self, address: _Optional[str] = ..., boot_id: _Optional[str] = ...) -> None: ...

class SessionLimits(_message.Message):
    __slots__ = ("stall_timeout_s", "resume_window_s")
    STALL_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    RESUME_WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    stall_timeout_s: float
    resume_window_s: float
    def __init__(self, stall_timeout_s: _Optional[float] = ..., resume_window_s: _Optional[float] = ...) -> None: ...

class SegmentOpen(_message.Message):
    __slots__ = ("segment", "sampling", "voice", "outputs", "delivery", "chunk_policy", "deadline_s", "history")
    class SamplingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Sampling
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Sampling, _Mapping]] = ...) -> None: ...
    class DeliveryEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Delivery
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Delivery, str]] = ...) -> None: ...
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    CHUNK_POLICY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    segment: int
    sampling: _containers.MessageMap[str, Sampling]
    voice: str
    outputs: _containers.RepeatedScalarFieldContainer[str]
    delivery: _containers.ScalarMap[str, Delivery]
    chunk_policy: ChunkPolicy
    deadline_s: float
    history: History
    def __init__(self, segment: _Optional[int] = ..., sampling: _Optional[_Mapping[str, Sampling]] = ..., voice: _Optional[str] = ..., outputs: _Optional[_Iterable[str]] = ..., delivery: _Optional[_Mapping[str, Delivery]] = ..., chunk_policy: _Optional[_Union[ChunkPolicy, _Mapping]] = ..., deadline_s: _Optional[float] = ..., history: _Optional[_Union[History, _Mapping]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "repetition_penalty", "seed", "max_tokens", "stop")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    seed: int
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ...) -> None: ...

class ChunkPolicy(_message.Message):
    __slots__ = ("first", "ramp", "steady")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    RAMP_FIELD_NUMBER: _ClassVar[int]
    STEADY_FIELD_NUMBER: _ClassVar[int]
    first: int
    ramp: _containers.RepeatedScalarFieldContainer[int]
    steady: int
    def __init__(self, first: _Optional[int] = ..., ramp: _Optional[_Iterable[int]] = ..., steady: _Optional[int] = ...) -> None: ...

class History(_message.Message):
    __slots__ = ("input", "output")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    input: _containers.RepeatedCompositeFieldContainer[_chunk_pb2.Chunk]
    output: _containers.RepeatedCompositeFieldContainer[_chunk_pb2.Chunk]
    def __init__(self, input: _Optional[_Iterable[_Union[_chunk_pb2.Chunk, _Mapping]]] = ..., output: _Optional[_Iterable[_Union[_chunk_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class InputFinished(_message.Message):
    __slots__ = ("segment",)
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    segment: int
    def __init__(self, segment: _Optional[int] = ...) -> None: ...

class CancelSegment(_message.Message):
    __slots__ = ("segment",)
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    segment: int
    def __init__(self, segment: _Optional[int] = ...) -> None: ...

class Reroute(_message.Message):
    __slots__ = ("edge", "destination", "attempt", "from_position")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FROM_POSITION_FIELD_NUMBER: _ClassVar[int]
    edge: str
    destination: Destination
    attempt: int
    from_position: int
    def __init__(self, edge: _Optional[str] = ..., destination: _Optional[_Union[Destination, _Mapping]] = ..., attempt: _Optional[int] = ..., from_position: _Optional[int] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("open", "segment_open", "chunk", "input_finished", "cancel_segment", "reroute")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_OPEN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    INPUT_FINISHED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    REROUTE_FIELD_NUMBER: _ClassVar[int]
    open: SessionOpen
    segment_open: SegmentOpen
    chunk: _chunk_pb2.Chunk
    input_finished: InputFinished
    cancel_segment: CancelSegment
    reroute: Reroute
    def __init__(self, open: _Optional[_Union[SessionOpen, _Mapping]] = ..., segment_open: _Optional[_Union[SegmentOpen, _Mapping]] = ..., chunk: _Optional[_Union[_chunk_pb2.Chunk, _Mapping]] = ..., input_finished: _Optional[_Union[InputFinished, _Mapping]] = ..., cancel_segment: _Optional[_Union[CancelSegment, _Mapping]] = ..., reroute: _Optional[_Union[Reroute, _Mapping]] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("boot_id",)
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    def __init__(self, boot_id: _Optional[str] = ...) -> None: ...

class SegmentReport(_message.Message):
    __slots__ = ("segment", "finish_reason", "input_positions", "input_audio_positions", "input_cached_positions", "output_positions", "first_input_s", "first_output_s", "last_output_s", "busy_s")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    INPUT_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    INPUT_AUDIO_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    INPUT_CACHED_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    FIRST_INPUT_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_OUTPUT_S_FIELD_NUMBER: _ClassVar[int]
    LAST_OUTPUT_S_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    segment: int
    finish_reason: _chunk_pb2.FinishReason
    input_positions: int
    input_audio_positions: int
    input_cached_positions: int
    output_positions: int
    first_input_s: float
    first_output_s: float
    last_output_s: float
    busy_s: float
    def __init__(self, segment: _Optional[int] = ..., finish_reason: _Optional[_Union[_chunk_pb2.FinishReason, str]] = ..., input_positions: _Optional[int] = ..., input_audio_positions: _Optional[int] = ..., input_cached_positions: _Optional[int] = ..., output_positions: _Optional[int] = ..., first_input_s: _Optional[float] = ..., first_output_s: _Optional[float] = ..., last_output_s: _Optional[float] = ..., busy_s: _Optional[float] = ...) -> None: ...

class SessionSuspended(_message.Message):
    __slots__ = ("edge", "address", "resume_window_s")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RESUME_WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    edge: str
    address: str
    resume_window_s: float
    def __init__(self, edge: _Optional[str] = ..., address: _Optional[str] = ..., resume_window_s: _Optional[float] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("opened", "chunk", "report", "suspended", "error")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    opened: SessionOpened
    chunk: _chunk_pb2.Chunk
    report: SegmentReport
    suspended: SessionSuspended
    error: SessionError
    def __init__(self, opened: _Optional[_Union[SessionOpened, _Mapping]] = ..., chunk: _Optional[_Union[_chunk_pb2.Chunk, _Mapping]] = ..., report: _Optional[_Union[SegmentReport, _Mapping]] = ..., suspended: _Optional[_Union[SessionSuspended, _Mapping]] = ..., error: _Optional[_Union[SessionError, _Mapping]] = ...) -> None: ...
