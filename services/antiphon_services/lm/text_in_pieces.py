"""Text to speak that may arrive in pieces. This is a variant of `antiphon_services.lm.spoken_text`.

While later pieces arrive, all pieces that have already arrived are prepared together. A segment
therefore goes through several preparations in a row and can start to speak before its text is
complete.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.pipelines.edges import PIECE, PIECE_FIELD
from antiphon.runtime.engine import InputChunk
from antiphon.values.chunk import Tensors
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.spoken_text import Made, SpokenText
from antiphon_services.stage.preparation import Preparations


class TextSizes(Protocol):
    """The maximum size of a text. Both methods raise `InvalidArgument` if it is exceeded."""

    def check_size(self, json_bytes: int) -> None:
        """Check the size of a message in bytes."""

    def check_pieces(self, count: int) -> None:
        """Check the total size of all pieces in bytes."""


class TextInPieces(SpokenText[Made]):
    """A text that arrives on `edge`, either as one message or in pieces. `make` prepares a message.

    `reference` contains the samples of the recording in the request. If the text is `written` by
    another stage, it arrives in pieces and may be empty, and any other tensors from that stage are
    ignored.
    """

    def __init__(
        self,
        edge: str,
        sizes: TextSizes,
        make: Callable[[Tensors], Made],
        reference: npt.NDArray[np.float32] | None,
        *,
        written: bool = False,
    ) -> None:
        recording_bytes = 0 if reference is None else reference.nbytes
        super().__init__(edge, sizes.check_size, make, recording_bytes)
        self._check_pieces = sizes.check_pieces
        self.written = self.in_pieces = written
        # The pieces that haven't been prepared yet, and the number of bytes received so far.
        self._pieces: list[bytes] = []
        self._text_bytes = 0

    @abstractmethod
    def make_pieces(self, utf8: bytes, *, last: bool) -> Callable[[], Made]:
        """Return a function that prepares the next bytes of the text.

        `last` is true if these bytes complete the text.
        """

    def accept(self, chunk: InputChunk) -> None:
        """Store the text, or a piece of it. Raises `InvalidArgument` if it is invalid."""
        piece = chunk.tensors.get(PIECE)
        if piece is None and not self.in_pieces:
            super().accept(chunk)
            return
        self.check_edge(chunk)
        if self._tensors or (chunk.tensors.keys() - {PIECE} and not self.written):
            raise InvalidArgument(
                f"{PIECE_FIELD}: can't be combined with `messages`; send only one of them",
                field=PIECE_FIELD,
            )
        self.in_pieces = True
        if piece is not None:
            self._text_bytes += piece.nbytes
            self._check_pieces(self._text_bytes)
            self._pieces.append(piece.tobytes())
        self._finished = chunk.segment_finished

    def begin(self, key: SegmentKey, preparations: Preparations[Made]) -> Future[Made] | None:
        """Start to prepare the whole text, or the pieces that have arrived so far."""
        if not self.in_pieces:
            return super().begin(key, preparations)
        if not self._pieces and not self._finished:
            return None
        text, self._pieces, self._make = b"".join(self._pieces), [], None
        last, self._finished = self._finished, False
        return preparations.begin(
            key,
            self.make_pieces(text, last=last),
            text_bytes=len(text),
            media_bytes=self.media_bytes,
        )
