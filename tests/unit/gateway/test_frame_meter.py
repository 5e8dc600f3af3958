"""How many frames of each kind a client may send, counted by the bytes in front of each."""

from __future__ import annotations

import struct

import pytest

from antiphon_gateway.serving.frame_meter import (
    CONTINUATION,
    HEADER_BYTES,
    HEADERS,
    MAX_BLOCK_BYTES,
    MAX_CONTINUATIONS,
    OTHER,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    SMALL_DATA,
    SMALL_DATA_BYTES,
    WINDOW,
    FrameBudget,
    FrameFlood,
    FrameMeter,
    FrameRate,
)

RATES = {0: SMALL_DATA, 1: HEADERS, 2: OTHER, 3: RESET, 4: SETTINGS, 6: PING, 8: WINDOW, 77: OTHER}


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + struct.pack(">I", 1) + payload


def opened(budget: FrameBudget | None = None) -> FrameMeter:
    meter = FrameMeter(budget or FrameBudget())
    meter.add(PREFACE, 0.0)
    return meter


@pytest.mark.parametrize("kind", RATES)
def test_a_burst_is_allowed_and_refills_at_the_rate(kind: int) -> None:
    rate: FrameRate = RATES[kind]
    meter = opened()
    meter.add(frame(kind, b"four") * rate.burst, 0.0)
    meter.add(frame(kind, b"four") * rate.per_s, 1.0)
    with pytest.raises(FrameFlood, match=rate.what):
        meter.add(frame(kind, b"four"), 1.0)
    # The burst is never more than it was at first.
    later = opened()
    later.add(frame(kind) * rate.burst, 1e6)
    with pytest.raises(FrameFlood):
        later.add(frame(kind), 1e6)


def test_kinds_have_rates_of_their_own() -> None:
    meter = opened()
    for kind in (0, 1, 3, 4, 6, 8, 77):
        meter.add(frame(kind, b"four") * RATES[kind].burst, 0.0)


def test_connections_of_an_address_share_its_rates() -> None:
    budget = FrameBudget()
    for _ in range(2):
        opened(budget).add(frame(1) * (HEADERS.burst // 2), 0.0)
    with pytest.raises(FrameFlood, match="HEADERS"):
        opened(budget).add(frame(1), 0.0)
    opened().add(frame(1), 0.0)


def test_header_blocks_have_a_rate_of_bytes() -> None:
    meter = opened()
    block = bytes(MAX_BLOCK_BYTES)
    for _ in range(HEADER_BYTES.burst // len(block)):
        meter.add(frame(1, block), 0.0)
    with pytest.raises(FrameFlood, match="bytes of header blocks"):
        meter.add(frame(1, b"x"), 0.0)


def test_continuations_have_a_rate() -> None:
    meter = opened()
    for _ in range(CONTINUATION.burst):
        meter.add(frame(1) + frame(9), 0.0)
    with pytest.raises(FrameFlood, match="CONTINUATION"):
        meter.add(frame(1) + frame(9), 0.0)


def test_large_data_is_left_to_flow_control() -> None:
    meter = opened()
    meter.add(frame(0, bytes(SMALL_DATA_BYTES)) * (SMALL_DATA.burst + 1), 0.0)
    with pytest.raises(FrameFlood):
        meter.add(frame(0, bytes(SMALL_DATA_BYTES - 1)) * (SMALL_DATA.burst + 1), 0.0)


@pytest.mark.parametrize("payload", [b"", b"x" * 100])
def test_a_header_block_has_so_many_frames(payload: bytes) -> None:
    meter = opened()
    for _ in range(3):
        meter.add(frame(1) + frame(9, payload) * MAX_CONTINUATIONS, 0.0)
    with pytest.raises(FrameFlood, match="header block"):
        meter.add(frame(9, payload), 0.0)


def test_a_header_block_has_so_many_bytes() -> None:
    meter = opened()
    quarter = bytes(MAX_BLOCK_BYTES // 4)
    for _ in range(2):
        meter.add(frame(1, quarter) + frame(9, quarter) * 3, 0.0)
    with pytest.raises(FrameFlood, match="header block"):
        meter.add(frame(9, b"x"), 0.0)
    with pytest.raises(FrameFlood, match="header block"):
        opened().add(frame(1, bytes(MAX_BLOCK_BYTES + 1)), 0.0)


@pytest.mark.parametrize("step", [1, 2, 7, 9, 10, 24, 1000])
def test_frames_are_counted_however_their_bytes_come(step: int) -> None:
    frames = frame(6, bytes(8)) * PING.burst + frame(0, bytes(500)) + frame(3, bytes(4))
    meter = FrameMeter(FrameBudget())
    sent = PREFACE + frames
    for at in range(0, len(sent), step):
        meter.add(sent[at : at + step], 0.0)
    with pytest.raises(FrameFlood, match="PING"):
        meter.add(frame(6, bytes(8)), 0.0)


def test_payload_is_not_read_as_frames() -> None:
    meter = opened()
    meter.add(frame(0, frame(4) * 2_000), 0.0)
    meter.add(frame(4), 0.0)
