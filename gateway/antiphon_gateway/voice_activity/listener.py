"""One thread that detects voice activity in all conversations, some frames of each at a time.

Its input is bounded: the caller waits until its audio has been processed, so that a conversation
has at most one piece here. A long piece does not delay short ones, because every round processes an
equal number of frames of each, `MOST_FRAMES` in total.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from queue import SimpleQueue

from antiphon.errors import Unavailable
from antiphon.values.chunk import Tensor
from antiphon_gateway.voice_activity.endpointing import SpeechEdge
from antiphon_gateway.voice_activity.network import voice_network
from antiphon_gateway.voice_activity.vad_stream import VadStream

MOST_FRAMES = 32
"""Frames that are heard together."""


class _Piece:
    """Audio of one conversation on its way through the thread."""

    def __init__(
        self, ear: VadStream, pcm16: bytes, heard: asyncio.Future[list[SpeechEdge]]
    ) -> None:
        self.ear = ear
        self.heard = heard
        self.error: Exception | None = None
        self._pcm16 = pcm16
        self._frames: Tensor | None = None
        self._next = 0
        self._edges: list[SpeechEdge] = []

    @property
    def whole(self) -> bool:
        """Whether all frames have been processed, or the caller has stopped waiting."""
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

    def tell(self) -> None:
        """Notify the waiting caller, on the event loop."""
        if self.heard.done():
            return
        if self.error is None:
            self.heard.set_result(self._edges)
        else:
            self.heard.set_exception(self.error)


class VoiceListener:
    """See the head of this file. The thread starts with the first audio; `close` ends it.

    All audio comes from one event loop.
    """

    def __init__(self) -> None:
        # None, the last, ends the thread.
        self._waiting: SimpleQueue[_Piece | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def listen(self, ear: VadStream, pcm16: bytes) -> list[SpeechEdge]:
        """Return where speech begins and ends in this audio. One concurrent call per stream.

        Cancellation may leave the audio partly processed. Raises `Unavailable` after `close`.
        """
        loop = asyncio.get_running_loop()
        piece = _Piece(ear, pcm16, loop.create_future())
        with self._closing:
            if self._closed:
                raise _closed()
            if self._thread is None:
                thread = threading.Thread(target=self._run, args=(loop,), name="voice-activity")
                # One that cannot start is tried again with the next audio.
                thread.start()
                self._thread = thread
            self._waiting.put(piece)
        return await piece.heard

    def close(self) -> None:
        """End the thread; who still waits gets `Unavailable`."""
        with self._closing:
            self._closed = True
            self._waiting.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        pieces: deque[_Piece] = deque()
        while self._take(pieces):
            batch = [pieces.popleft() for _ in range(min(MOST_FRAMES, len(pieces)))]
            over = self._hear(batch)
            # One call for all of them: each wakes the event loop up.
            if over:
                loop.call_soon_threadsafe(_tell, over)
            pieces += [piece for piece in batch if piece not in over]
        for piece in pieces:
            piece.error = _closed()
        if pieces:
            loop.call_soon_threadsafe(_tell, pieces)

    def _take(self, pieces: deque[_Piece]) -> bool:
        """Take all waiting pieces, or wait for one if there are none. Returns False at the end."""
        while not (pieces and self._waiting.empty()):
            piece = self._waiting.get()
            if piece is None:
                return False
            pieces.append(piece)
        return True

    def _hear(self, batch: list[_Piece]) -> list[_Piece]:
        """Process the next frames of each piece, and return the pieces that are complete."""
        over: list[_Piece] = []
        going: list[tuple[_Piece, Tensor]] = []
        for piece in batch:
            try:
                frames = piece.next_frames(MOST_FRAMES // len(batch))
            except Exception as error:
                # Told to the one whose audio it is.
                piece.error = error
                over.append(piece)
                continue
            if len(frames) and not piece.heard.cancelled():
                going.append((piece, frames))
            else:
                over.append(piece)
        if not going:
            return over
        try:
            spoken, memories = voice_network().hear(
                [frames for _, frames in going], [piece.ear.memory for piece, _ in going]
            )
        except Exception as error:
            for piece, _ in going:
                piece.error = error
            return batch
        for (piece, _), probabilities, memory in zip(going, spoken, memories, strict=True):
            piece.ear.memory = memory
            piece.note(probabilities)
            if piece.whole:
                over.append(piece)
        return over


def _tell(pieces: Iterable[_Piece]) -> None:
    for piece in pieces:
        piece.tell()


def _closed() -> Unavailable:
    return Unavailable("the gateway is shutting down", retry_after_s=1.0)
