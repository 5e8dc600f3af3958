from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason

class Chunk(_message.Message):
    __slots__ = ("session_id", "edge", "segment", "attempt", "sequence", "position", "segment_finished", "finished", "finish_reason", "payload", "prime")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FINISHED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PRIME_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    edge: str
    segment: int
    attempt: int
    sequence: int
    position: int
    segment_finished: bool
    finished: bool
    finish_reason: FinishReason
    payload: Payload
    prime: bool
    def __init__(self, session_id: _Optional[str] = ..., edge: _Optional[str] = ..., segment: _Optional[int] = ..., attempt: _Optional[int] = ..., sequence: _Optional[int] = ..., position: _Optional[int] = ..., segment_finished: bool = ..., finished: bool = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., payload: _Optional[_Union[Payload, _Mapping]] = ..., prime: bool = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("size_bytes", "inline", "slab_slot", "collective", "framed")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    SLAB_SLOT_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    FRAMED_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    inline: bytes
    slab_slot: SlabSlot
    collective: CollectiveTransfer
    framed: FramedTransfer
    def __init__(self, size_bytes: _Optional[int] = ..., inline: _Optional[bytes] = ..., slab_slot: _Optional[_Union[SlabSlot, _Mapping]] = ..., collective: _Optional[_Union[CollectiveTransfer, _Mapping]] = ..., framed: _Optional[_Union[FramedTransfer, _Mapping]] = ...) -> None: ...

class SlabSlot(_message.Message):
    __slots__ = ("offset_bytes", "generation")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    generation: int
    def __init__(self, offset_bytes: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class CollectiveTransfer(_message.Message):
    __slots__ = ("transfer",)
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    def __init__(self, transfer: _Optional[int] = ...) -> None: ...

class FramedTransfer(_message.Message):
    __slots__ = ("transfer", "frames")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    frames: int
    def __init__(self, transfer: _Optional[int] = ..., frames: _Optional[int] = ...) -> None: ...

class PayloadFrame(_message.Message):
    __slots__ = ("transfer", "offset_bytes", "data")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    offset_bytes: int
    data: bytes
    def __init__(self, transfer: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
