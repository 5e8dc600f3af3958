"""Detects voice activity for all conversations on a single thread, which processes a few frames of
each conversation at a time.

Pieces of audio from the same pass of the event loop are handed over together. Each conversation has
at most one piece waiting, because the caller waits until its audio has been processed. Long pieces
don't delay short ones, because each round processes the same number of frames from every piece, up
to a total of `MOST_FRAMES`.
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

MOST_FRAMES = 128
"""The maximum number of frames that are processed together."""


class _Piece:
    """A piece of audio from one conversation that is being processed by the thread."""

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
        """Whether all frames have been processed, or the caller is no longer waiting."""
        whole = self._frames is not None and self._next == len(self._frames)
        return whole or self.heard.cancelled()

    def next_frames(self, most: int) -> Tensor:
        """Return the next frames. The result may be empty."""
        if self._frames is None:
            self._frames = self.ear.frames(self._pcm16)
        frames = self._frames[self._next : self._next + most]
        self._next += len(frames)
        return frames

    def note(self, probabilities: list[float]) -> None:
        """Store the speech probabilities of the frames."""
        self._edges += filter(None, map(self.ear.hear, probabilities))

    def tell(self) -> None:
        """Notify the waiting caller on the event loop."""
        if self.heard.done():
            return
        if self.error is None:
            self.heard.set_result(self._edges)
        else:
            self.heard.set_exception(self.error)


class VoiceListener:
    """Detects voice activity as described in the module docstring. The thread is started when there
    is audio for the first time and stopped by `close`.

    All audio must come from the same event loop.
    """

    def __init__(self) -> None:
        # The final element is None, which stops the thread.
        self._waiting: SimpleQueue[list[_Piece] | None] = SimpleQueue()
        # Pieces from the current pass of the event loop.
        self._coming: list[_Piece] = []
        self._closing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def listen(self, ear: VadStream, pcm16: bytes) -> list[SpeechEdge]:
        """Return where speech starts and ends in this audio. A stream can have only one call at a
        time.

        If this is cancelled, some of the audio may already have been processed. After `close`,
        `Unavailable` is raised.
        """
        loop = asyncio.get_running_loop()
        piece = _Piece(ear, pcm16, loop.create_future())
        with self._closing:
            if self._closed:
                raise _closed()
            if self._thread is None:
                thread = threading.Thread(target=self._run, args=(loop,), name="voice-activity")
                # If the thread can't be started, starting it is tried again when there is more
                # audio.
                thread.start()
                self._thread = thread
        if not self._coming:
            # All audio that arrives in the same pass of the event loop wakes the thread once and
            # is processed together.
            loop.call_soon(self._hand_over)
        self._coming.append(piece)
        return await piece.heard

    def _hand_over(self) -> None:
        pieces, self._coming = self._coming, []
        with self._closing:
            if not self._closed:
                self._waiting.put(pieces)
                return
        _end(pieces)

    def close(self) -> None:
        """Stop the thread. Callers that are still waiting receive `Unavailable`."""
        with self._closing:
            self._closed = True
            self._waiting.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        pieces: deque[_Piece] = deque()
        while self._take(pieces):
            self._process_batch(pieces, loop)
        if pieces:
            loop.call_soon_threadsafe(_end, pieces)

    def _process_batch(self, pieces: deque[_Piece], loop: asyncio.AbstractEventLoop) -> None:
        """Process the next frames of the first pieces, and remove the ones that are now complete.
        While the thread waits for more audio, it must not keep them in local variables.
        """
        batch = [pieces.popleft() for _ in range(min(MOST_FRAMES, len(pieces)))]
        over = self._hear(batch)
        # Notify all callers with a single call, because each call wakes the event loop.
        if over:
            loop.call_soon_threadsafe(_tell, over)
        pieces += [piece for piece in batch if piece not in over]

    def _take(self, pieces: deque[_Piece]) -> bool:
        """Take all waiting pieces. If there are none, wait for some. Returns False if the thread
        has to stop.
        """
        while not (pieces and self._waiting.empty()):
            more = self._waiting.get()
            if more is None:
                return False
            pieces += more
        return True

    def _hear(self, batch: list[_Piece]) -> list[_Piece]:
        """Process the next frames of each piece. Returns the pieces that are now complete."""
        over: list[_Piece] = []
        going: list[tuple[_Piece, Tensor]] = []
        for piece in batch:
            try:
                frames = piece.next_frames(MOST_FRAMES // len(batch))
            except Exception as error:
                # The error is raised for the caller that provided this audio.
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


def _end(pieces: Iterable[_Piece]) -> None:
    for piece in pieces:
        piece.error = _closed()
        piece.tell()


def _closed() -> Unavailable:
    return Unavailable("the gateway is shutting down", retry_after_s=1.0)
