from antiphon.v1 import chunk_pb2 as _chunk_pb2
from antiphon.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("model", "checkpoint_fingerprint", "pipeline", "role", "inputs", "outputs", "voices", "sample_rate_hz", "samples_per_frame", "context_limit", "input_kinds", "input_sample_rate_hz", "slots", "engine", "transports", "host_id", "boot_id", "version", "code_groups", "code_entries", "pipeline_edges", "max_stop_bytes", "max_stops", "max_input_audio_s")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    VOICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_FRAME_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    INPUT_KINDS_FIELD_NUMBER: _ClassVar[int]
    INPUT_SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CODE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    CODE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_EDGES_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STOPS_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUT_AUDIO_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    checkpoint_fingerprint: str
    pipeline: str
    role: str
    inputs: _containers.RepeatedCompositeFieldContainer[EdgeDescription]
    outputs: _containers.RepeatedCompositeFieldContainer[EdgeDescription]
    voices: _containers.RepeatedScalarFieldContainer[str]
    sample_rate_hz: int
    samples_per_frame: int
    context_limit: int
    input_kinds: _containers.RepeatedScalarFieldContainer[str]
    input_sample_rate_hz: int
    slots: int
    engine: str
    transports: _containers.RepeatedScalarFieldContainer[str]
    host_id: str
    boot_id: str
    version: str
    code_groups: int
    code_entries: int
    pipeline_edges: _containers.RepeatedCompositeFieldContainer[PipelineEdge]
    max_stop_bytes: int
    max_stops: int
    max_input_audio_s: float
    def __init__(self, model: _Optional[str] = ..., checkpoint_fingerprint: _Optional[str] = ..., pipeline: _Optional[str] = ..., role: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[EdgeDescription, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[EdgeDescription, _Mapping]]] = ..., voices: _Optional[_Iterable[str]] = ..., sample_rate_hz: _Optional[int] = ..., samples_per_frame: _Optional[int] = ..., context_limit: _Optional[int] = ..., input_kinds: _Optional[_Iterable[str]] = ..., input_sample_rate_hz: _Optional[int] = ..., slots: _Optional[int] = ..., engine: _Optional[str] = ..., transports: _Optional[_Iterable[str]] = ..., host_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., version: _Optional[str] = ..., code_groups: _Optional[int] = ..., code_entries: _Optional[int] = ..., pipeline_edges: _Optional[_Iterable[_Union[PipelineEdge, _Mapping]]] = ..., max_stop_bytes: _Optional[int] = ..., max_stops: _Optional[int] = ..., max_input_audio_s: _Optional[float] = ...) -> None: ...

class EdgeDescription(_message.Message):
    __slots__ = ("name", "tensors", "default_delivery")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DELIVERY_FIELD_NUMBER: _ClassVar[int]
    name: str
    tensors: _containers.RepeatedCompositeFieldContainer[TensorDescription]
    default_delivery: _session_pb2.Delivery
    def __init__(self, name: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[TensorDescription, _Mapping]]] = ..., default_delivery: _Optional[_Union[_session_pb2.Delivery, str]] = ...) -> None: ...

class TensorDescription(_message.Message):
    __slots__ = ("name", "dtype", "shape", "optional")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    optional: bool
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., optional: bool = ...) -> None: ...

class PipelineEdge(_message.Message):
    __slots__ = ("name", "producer", "consumer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer: str
    consumer: str
    def __init__(self, name: _Optional[str] = ..., producer: _Optional[str] = ..., consumer: _Optional[str] = ...) -> None: ...

class LinkRequest(_message.Message):
    __slots__ = ("hello", "batch", "frame")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    hello: LinkHello
    batch: ChunkBatch
    frame: _chunk_pb2.PayloadFrame
    def __init__(self, hello: _Optional[_Union[LinkHello, _Mapping]] = ..., batch: _Optional[_Union[ChunkBatch, _Mapping]] = ..., frame: _Optional[_Union[_chunk_pb2.PayloadFrame, _Mapping]] = ...) -> None: ...

class LinkHello(_message.Message):
    __slots__ = ("link_id", "host_id", "boot_id", "role", "offers")
    LINK_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    link_id: str
    host_id: str
    boot_id: str
    role: str
    offers: _containers.RepeatedCompositeFieldContainer[TransportOffer]
    def __init__(self, link_id: _Optional[str] = ..., host_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., role: _Optional[str] = ..., offers: _Optional[_Iterable[_Union[TransportOffer, _Mapping]]] = ...) -> None: ...

class TransportOffer(_message.Message):
    __slots__ = ("transport", "locator", "nonce", "size_bytes")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    LOCATOR_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    transport: str
    locator: str
    nonce: bytes
    size_bytes: int
    def __init__(self, transport: _Optional[str] = ..., locator: _Optional[str] = ..., nonce: _Optional[bytes] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ChunkBatch(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[_chunk_pb2.Chunk]
    def __init__(self, chunks: _Optional[_Iterable[_Union[_chunk_pb2.Chunk, _Mapping]]] = ...) -> None: ...

class LinkResponse(_message.Message):
    __slots__ = ("accept", "ack", "credit", "refusal")
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    accept: LinkAccept
    ack: LinkAck
    credit: LinkCredit
    refusal: LinkRefusal
    def __init__(self, accept: _Optional[_Union[LinkAccept, _Mapping]] = ..., ack: _Optional[_Union[LinkAck, _Mapping]] = ..., credit: _Optional[_Union[LinkCredit, _Mapping]] = ..., refusal: _Optional[_Union[LinkRefusal, _Mapping]] = ...) -> None: ...

class LinkAccept(_message.Message):
    __slots__ = ("transport", "proof", "boot_id", "refused", "resume")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    transport: str
    proof: bytes
    boot_id: str
    refused: _containers.RepeatedScalarFieldContainer[str]
    resume: _containers.RepeatedCompositeFieldContainer[LinkAck]
    def __init__(self, transport: _Optional[str] = ..., proof: _Optional[bytes] = ..., boot_id: _Optional[str] = ..., refused: _Optional[_Iterable[str]] = ..., resume: _Optional[_Iterable[_Union[LinkAck, _Mapping]]] = ...) -> None: ...

class LinkAck(_message.Message):
    __slots__ = ("session_id", "edge", "attempt", "sequence")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    edge: str
    attempt: int
    sequence: int
    def __init__(self, session_id: _Optional[str] = ..., edge: _Optional[str] = ..., attempt: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class LinkCredit(_message.Message):
    __slots__ = ("session_id", "edge", "positions")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    edge: str
    positions: int
    def __init__(self, session_id: _Optional[str] = ..., edge: _Optional[str] = ..., positions: _Optional[int] = ...) -> None: ...

class LinkRefusal(_message.Message):
    __slots__ = ("session_id", "edge", "attempt", "error")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    edge: str
    attempt: int
    error: _session_pb2.SessionError
    def __init__(self, session_id: _Optional[str] = ..., edge: _Optional[str] = ..., attempt: _Optional[int] = ..., error: _Optional[_Union[_session_pb2.SessionError, _Mapping]] = ...) -> None: ...
