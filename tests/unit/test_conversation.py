from __future__ import annotations

import numpy as np
import pytest

from antiphon.errors import InvalidArgument
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    ImagePart,
    TextPart,
    VideoPart,
    from_tensors,
    to_tensors,
)


def test_conversation_round_trip() -> None:
    recording = np.linspace(-1, 1, 50, dtype=np.float32)
    conversation = Conversation(
        (
            ConversationMessage("system", (TextPart("Be brief."),)),
            ConversationMessage("user", (TextPart("What is this? é"), AudioPart(0))),
            ConversationMessage("assistant", (TextPart("A tone."),)),
            ConversationMessage(
                "user", (ImagePart(0), VideoPart(0), TextPart("And these?"), ImagePart(1))
            ),
        ),
        (recording,),
        (np.arange(9, dtype=np.uint8), np.ones(1, np.uint8)),
        (np.arange(5, dtype=np.uint8),),
    )
    back = from_tensors(to_tensors(conversation))
    assert back.messages == conversation.messages
    np.testing.assert_array_equal(back.recordings[0], recording)
    for name in ("images", "videos"):
        for came, given in zip(getattr(back, name), getattr(conversation, name), strict=True):
            np.testing.assert_array_equal(came, given)


IMAGE = b'[{"role":"user","parts":[{"type":"image","index":0}]}]'
AUDIO = b'[{"role":"user","parts":[{"type":"audio","index":0}]}]'


@pytest.mark.parametrize(
    ("messages", "audio"),
    [
        (b"", {}),
        (b"\xff\xfe", {}),
        (b'[{"role":"robot","parts":[]}]', {}),
        (b'[{"role":"user","parts":[{"type":"video"}]}]', {}),
        (b'[{"role":"user","parts":[],"mood":"glad"}]', {}),
        (AUDIO, {}),
        (AUDIO, {"audio.7": np.ones(3, np.float32)}),
        (AUDIO, {"audio.0": np.ones(3, np.float64)}),
        (AUDIO, {"audio.0": np.ones((3, 1), np.float32)}),
        (AUDIO, {"audio.0": np.empty(0, np.float32)}),
        (AUDIO, {"audio.0": np.array([np.nan], np.float32)}),
        (b"[]", {"audio.0": np.ones(3, np.float32)}),
        (AUDIO, {"audio.0": np.ones(3, np.float32), "smell.0": np.ones(3, np.float32)}),
        (AUDIO, {"audio.0": np.ones(3, np.float32), "image.0": np.ones(3, np.uint8)}),
        (IMAGE, {"video.0": np.ones(3, np.uint8)}),
        (IMAGE, {"image.0": np.ones(3, np.float32)}),
        (IMAGE, {"image.0": np.ones((2, 2), np.uint8)}),
        (IMAGE, {"image.0": np.empty(0, np.uint8)}),
    ],
)
def test_conversation_raises_when_it_is_wrong(
    messages: bytes, audio: dict[str, np.ndarray]
) -> None:
    with pytest.raises(InvalidArgument):
        from_tensors({"messages": np.frombuffer(messages, np.uint8), **audio})


def test_conversation_raises_when_messages_are_missing() -> None:
    with pytest.raises(InvalidArgument, match="messages"):
        from_tensors({})
