from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from antiphon.errors import DataLoss
from antiphon.transport.payload.framed import FRAME_BYTES, FramedReceiver, FramedSender
from antiphon.transport.payload.transport import placed
from antiphon.v1 import chunk_pb2
from antiphon.wire.blob import Encoding
from antiphon.wire.frames import Frame, LinkMessage

LARGEST_BYTES = 1 << 30


def frame(transfer: int, offset: int, total: int, data: bytes = b"abcd") -> Frame:
    return Frame(transfer, offset, total, (memoryview(data),))


def payload(transfer: int, size: int) -> chunk_pb2.Payload:
    return placed("grpc", size, transfer.to_bytes(8, "little"))


async def test_blob_comes_out_as_it_went_in() -> None:
    written: list[Frame] = []

    async def write(message: LinkMessage) -> None:
        assert isinstance(message, Frame)
        written.append(message)

    encoding = Encoding({"x": np.arange(3 * FRAME_BYTES, dtype=np.uint8)})
    placement = FramedSender(write).place(encoding)
    assert placement.push is not None
    await placement.push()
    assert [each.size_bytes <= FRAME_BYTES for each in written] == [True] * 4
    receiver = FramedReceiver()
    for each in written:
        receiver.take(each)
    assert bytes(await receiver.fetch(placement.payload)) == encoding.to_bytes()
    with pytest.raises(DataLoss, match="has not come"):
        await receiver.fetch(placement.payload)


def test_nothing_is_reserved_for_a_payload_that_is_too_large() -> None:
    receiver = FramedReceiver()
    receiver.take(frame(0, 0, LARGEST_BYTES))
    with pytest.raises(DataLoss, match=f"a payload of {LARGEST_BYTES + 1} bytes"):
        receiver.take(frame(1, 0, LARGEST_BYTES + 1))


@pytest.mark.parametrize(
    "frames",
    [
        [frame(0, 4, 8)],
        [frame(0, 0, 8), frame(0, 5, 8, b"abc")],
        [frame(0, 0, 8), frame(1, 4, 8)],
        [frame(0, 0, 8), frame(0, 4, 8, b"abcde")],
        [frame(0, 0, 2)],
        [frame(0, 0, 8), frame(0, 4, 8), frame(0, 4, 8)],
    ],
    ids=["no beginning", "gap", "another transfer", "too long", "too long at once", "twice"],
)
def test_frame_is_refused_when_it_does_not_continue_what_there_is(
    frames: Sequence[Frame],
) -> None:
    receiver = FramedReceiver()
    for each in frames[:-1]:
        receiver.take(each)
    with pytest.raises(DataLoss, match="out of place"):
        receiver.take(frames[-1])


@pytest.mark.parametrize(("transfer", "size"), [(0, 8), (1, 4), (0, 3)])
async def test_payload_is_lost_when_it_is_not_what_came(transfer: int, size: int) -> None:
    receiver = FramedReceiver()
    receiver.take(frame(0, 0, 4))
    with pytest.raises(DataLoss, match="has not come"):
        await receiver.fetch(payload(transfer, size))


async def test_payload_is_lost_when_a_part_of_it_has_not_come() -> None:
    receiver = FramedReceiver()
    receiver.take(frame(0, 0, 8))
    with pytest.raises(DataLoss, match="has not come"):
        await receiver.fetch(payload(0, 8))
