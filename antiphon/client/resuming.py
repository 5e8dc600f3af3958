"""Tracks how much of an answer has been received, so that another server can continue it. This
module performs no I/O.
"""

from __future__ import annotations

import hashlib

from antiphon.v1 import speech_pb2

PCM16_BYTES = CODE_BYTES = 2
LATENT_BYTES = 4


class AnswerPosition:
    """Tracks a single answer. Every message that is received from a server must be passed to it."""

    def __init__(self) -> None:
        self._part = speech_pb2.DeliveredPart()
        self._digest = hashlib.sha256()
        self._begun = self._resumable = False

    @property
    def begun(self) -> bool:
        """Whether any message has been received."""
        return self._begun

    @property
    def delivered(self) -> speech_pb2.DeliveredPart | None:
        """The part of the answer that the next server can skip. None if no other server can
        continue the answer.

        After a function call, an answer can't be continued, because only the server that made the
        call knows its ID. It can't be continued either if it has already ended or if the server
        doesn't report its seed.
        """
        if not self._resumable:
            return None
        self._part.text_sha256 = self._digest.digest()
        return self._part

    def note(self, message: speech_pb2.GenerateResponse) -> None:
        """Record a message that was received."""
        self._begun = True
        part = self._part
        match message.WhichOneof("event"):
            case "started":
                self._resumable = message.started.HasField("drawn_seed")
                part.drawn_seed = message.started.drawn_seed
            case "text":
                text = message.text
                part.characters += len(text.text)
                self._digest.update(text.text.encode())
                part.token_ids += len(text.token_ids)
                part.logprobs += len(text.logprobs)
            case "audio":
                part.samples += len(message.audio.pcm16) // PCM16_BYTES
                part.codes += len(message.audio.codes) // CODE_BYTES
                part.codes += len(message.audio.latents) // LATENT_BYTES
            case "image":
                part.images += len(message.image.images)
            case "progress":
                pass
            case _:
                self._resumable = False
