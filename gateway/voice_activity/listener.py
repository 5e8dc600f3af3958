"""One thread that hears all conversations, some frames of each at a time.

Its input is bounded: who gives it audio waits for what was heard in it, so a conversation has one
piece here. A long piece does not keep short ones waiting, since every round takes as many frames of
each, `MOST_FRAMES` in all.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from antiphon.chunk import Tensor
from antiphon.errors import Unavailable
from gateway.voice_activity.ear import Ear
from gateway.voice_activity.endpointing import SpeechEdge
from gateway.voice_activity.network import voice_network

MOST_FRAMES = 32
"""Frames that are heard together."""


class _Piece:
    """Audio of one conversation on its way through the thread."""

    def __init__(self, ear: Ear, pcm16: bytes) -> None:
        self.ear = ear
        self.heard: asyncio.Future[list[SpeechEdge]] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._pcm16 = pcm16
        self._frames: Tensor | None = None
        self._next = 0
        self._edges: list[SpeechEdge] = []

    @property
    def whole(self) -> bool:
        """Whether all has been heard, or nobody waits any more."""
        whole = self._frames is not None and self._next == len(self._frames)
        return whole or self.heard.cancelled()

    def next_frames(self, most: int) -> Tensor:
        """The next frames, if there are any."""
        if self._frames is None:
            self._frames = self.ear.frames(self._pcm16)
        frames = self._frames[self._next : self._next + most]
        self._next += len(frames)
        return frames

    def note(self, probabilities: list[float]) -> None:
        """The frames hold speech with these probabilities."""
        self._edges += filter(None, map(self.ear.hear, probabilities))

    def finish(self, error: Exception | None = None) -> None:
        """Tell who waits."""

        def tell() -> None:
            if self.heard.done():
                return
            if error is None:
                self.heard.set_result(self._edges)
            else:
                self.heard.set_exception(error)

        self._loop.call_soon_threadsafe(tell)


class VoiceListener:
    """See the head of this file. The thread starts with the first audio; `close` ends it."""

    def __init__(self) -> None:
        self._waiting: deque[_Piece] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def listen(self, ear: Ear, pcm16: bytes) -> list[SpeechEdge]:
        """Where speech begins and ends, as far as this audio shows. One call at a time for an ear.

        Cancelling leaves the ear with part of the audio heard. Raises `Unavailable` after `close`.
        """
        piece = _Piece(ear, pcm16)
        with self._changed:
            if self._closed:
                raise _closed()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="voice-activity")
                # One that cannot start is tried again with the next audio.
                thread.start()
                self._thread = thread
            self._waiting.append(piece)
            self._changed.notify()
        return await piece.heard

    def close(self) -> None:
        """End the thread; who still waits gets `Unavailable`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pieces: deque[_Piece] = deque()
        while not self._closed:
            with self._changed:
                while not (pieces or self._waiting or self._closed):
                    self._changed.wait()
                pieces += self._waiting
                self._waiting.clear()
            batch = [pieces.popleft() for _ in range(min(MOST_FRAMES, len(pieces)))]
            pieces += self._hear(batch)
        for piece in (*pieces, *self._waiting):
            piece.finish(_closed())

    def _hear(self, batch: list[_Piece]) -> list[_Piece]:
        """Hear the next frames of each piece; those that may have more."""
        going: list[tuple[_Piece, Tensor]] = []
        for piece in batch:
            try:
                frames = piece.next_frames(MOST_FRAMES // len(batch))
            except Exception as error:
                # Told to the one whose audio it is.
                piece.finish(error)
                continue
            if len(frames) and not piece.heard.cancelled():
                going.append((piece, frames))
            else:
                piece.finish()
        if not going:
            return []
        try:
            spoken, memories = voice_network().hear(
                [frames for _, frames in going], [piece.ear.memory for piece, _ in going]
            )
        except Exception as error:
            for piece, _ in going:
                piece.finish(error)
            return []
        for (piece, _), probabilities, memory in zip(going, spoken, memories, strict=True):
            piece.ear.memory = memory
            piece.note(probabilities)
            if piece.whole:
                piece.finish()
        return [piece for piece, _ in going if not piece.whole]


def _closed() -> Unavailable:
    return Unavailable("the gateway is shutting down", retry_after_s=1.0)
