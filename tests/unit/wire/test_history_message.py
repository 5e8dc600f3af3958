from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from antiphon.errors import InvalidArgument
from antiphon.v1 import session_pb2
from antiphon.values.history import FRAMES, IDS, LATENTS, MAX_HISTORY_BYTES, History
from antiphon.wire.history import history_from_proto, history_to_proto

HISTORY = History(
    np.array([0, 1 << 30, -1], np.int32),
    np.arange(12, dtype=np.uint16).reshape(3, 4),
    np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5),
)


@pytest.mark.parametrize("kinds", [(), (IDS,), (FRAMES,), (LATENTS,), (IDS, FRAMES)])
def test_message_has_what_is_named(kinds: tuple[str, ...]) -> None:
    made = history_from_proto(history_to_proto(HISTORY, kinds))
    assert made.ids.tolist() == (HISTORY.ids.tolist() if IDS in kinds else [])
    assert made.frames.tolist() == (HISTORY.frames.tolist() if FRAMES in kinds else [])
    assert made.latents.tolist() == (HISTORY.latents.tolist() if LATENTS in kinds else [])
    assert made.latents.dtype == np.float32


def test_message_of_nothing_is_nothing() -> None:
    made = history_from_proto(history_to_proto(History(), (IDS, FRAMES, LATENTS)))
    assert made.ids.shape == (0,)
    assert made.frames.shape == made.latents.shape == (0, 0)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"ids": bytes(5)}, "history.ids"),
        ({"frames": bytes(6), "code_groups": 4}, "history.frames"),
        ({"frames": bytes(8)}, "history.frames"),
        ({"frames": bytes(8), "code_groups": (1 << 32) - 1}, "history.frames"),
        ({"ids": bytes(8), "frames": bytes(MAX_HISTORY_BYTES), "code_groups": 1}, "history"),
        ({"latents": bytes(10), "latent_width": 5}, "history.latents"),
        ({"latents": bytes(24), "latent_width": 5}, "history.latents"),
        ({"latents": bytes(20)}, "history.latents"),
        ({"ids": bytes(8), "latents": bytes(MAX_HISTORY_BYTES), "latent_width": 1}, "history"),
    ],
)
def test_message_is_refused_when_its_bytes_are_no_ids_or_frames(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        history_from_proto(session_pb2.History(**fields))
    assert caught.value.field == field


def test_message_of_no_frames_may_name_any_number_of_codes() -> None:
    assert not len(history_from_proto(session_pb2.History(code_groups=(1 << 32) - 1)).frames)
