"""Converts a segment's input to a prompt and an empty reply. All engines use this module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from antiphon.errors import InvalidArgument
from antiphon.runtime.engine import InputChunk
from antiphon.values.chunk import Tensors
from antiphon.values.conversation import from_tensors
from antiphon_services.lm.sampling import PenaltyWindow
from antiphon_services.stage.preparation import LARGE_MEDIA_BYTES, Preparations
from antiphon_services.text.calls import ReplyCalls
from antiphon_services.text.detokenizer import Detokenizer, Vocabulary
from antiphon_services.text.logprobs import ReplyLogprobs
from antiphon_services.text.stopping import ReplyText
from antiphon_services.thinker.listening import HeardPrompt, LiveInput
from antiphon_services.thinker.prompt import Ids, PreparedPrompt, PromptFactory
from antiphon_services.thinker.thinker_segment import (
    INPUT,
    PROMPT,
    TEXT,
    TOKENS,
    G,
    Positions,
    ReplyCodes,
    ThinkerSegment,
)

ThinkerPreparations = Preparations[PreparedPrompt | HeardPrompt]
SEEN = ("image.", "video.")
"""Name prefixes of tensors that contain files to decode."""


@dataclass(frozen=True, slots=True)
class PromptIntake:
    """Creates prompts and replies for a checkpoint. `stop_id` ends a reply.

    `row_positions` returns the prompt positions whose hidden rows the talker needs, in ascending
    order. If `every_row` is true, the talker needs the rows for all positions of the prompt and the
    reply. `speech` describes replies in which some IDs are codes. If a `window` is given, the
    latest IDs have their own penalty.
    """

    prompts: PromptFactory
    vocabulary: Vocabulary
    stop_id: int
    row_positions: Callable[[Ids], Positions]
    every_row: bool = False
    speech: ReplyCodes | None = None
    window: PenaltyWindow | None = None

    def store(self, segment: ThinkerSegment[G], chunk: InputChunk) -> None:
        """Store the conversation, which arrives as a single chunk. For a live segment, further
        chunks contain the last recording.

        Raises `InvalidArgument` if the input is invalid, or if the messages are too long to fit
        into the context.
        """
        if chunk.edge != INPUT:
            raise InvalidArgument(f"the thinker has no input edge {chunk.edge!r}", edge=chunk.edge)
        if chunk.tensors and segment.tensors and not segment.settings.live:
            raise InvalidArgument(
                "input: the conversation must be sent in a single chunk", field="messages"
            )
        texts = [chunk.tensors[name] for name in ("messages", "tools") if name in chunk.tensors]
        self.prompts.check_size(sum(each.nbytes for each in texts))
        if segment.settings.live:
            self._hear(segment, chunk)
        else:
            segment.tensors = chunk.tensors or segment.tensors
        segment.input_finished = chunk.segment_finished

    def _hear(self, segment: ThinkerSegment[G], chunk: InputChunk) -> None:
        """Store a piece of a live segment's input. If the input is complete before any piece has
        been used, it is treated as a whole.
        """
        if segment.live_input is None:
            speaks = segment.wants(PROMPT) or segment.wants(TOKENS)
            segment.live_input = LiveInput(self.prompts, speaks=speaks)
        segment.live_input.take(chunk.tensors, last=chunk.segment_finished)
        if chunk.segment_finished and not segment.live_input.began:
            segment.tensors = segment.live_input.whole()

    def prepare(
        self,
        segment: ThinkerSegment[G],
        preparations: ThinkerPreparations,
        done: Callable[[], None],
    ) -> None:
        """Start to prepare the segment's prompt, or the next part of a growing prompt, unless a
        preparation is already in progress.

        `done` is called when the preparation ends and may be called on any thread. If the input is
        invalid, the prepared prompt raises `InvalidArgument`.
        """
        live = segment.live_input
        if segment.preparation is not None or segment.ended:
            return
        if live is not None and (live.began or not live.finished):
            self._listen(segment, preparations, done)
        elif segment.input_finished and segment.generation is None:
            self._begin(segment, preparations, done)

    def _listen(
        self,
        segment: ThinkerSegment[G],
        preparations: ThinkerPreparations,
        done: Callable[[], None],
    ) -> None:
        """Start to prepare the available part of a live segment's input, if it is long enough."""
        job = segment.live_input.next_job() if segment.live_input is not None else None
        if job is not None:
            make, size = job
            self._start(segment, preparations, make, done, text_bytes=0, media_bytes=size)

    def _begin(
        self,
        segment: ThinkerSegment[G],
        preparations: ThinkerPreparations,
        done: Callable[[], None],
    ) -> None:
        """Start to prepare the prompt for a segment whose input is complete."""
        tensors, segment.tensors = segment.tensors, {}
        speaks = segment.wants(PROMPT) or segment.wants(TOKENS)
        make = partial(self._make, tensors, speaks=speaks)
        text_bytes = sum(tensors[name].nbytes for name in ("messages", "tools") if name in tensors)
        media_bytes = sum(tensor.nbytes for tensor in tensors.values()) - text_bytes
        if self.prompts.patches and any(name.startswith(SEEN) for name in tensors):
            # A small file may contain a large number of pixels.
            media_bytes = max(media_bytes, LARGE_MEDIA_BYTES)
        self._start(
            segment, preparations, make, done, text_bytes=text_bytes, media_bytes=media_bytes
        )

    def _start(
        self,
        segment: ThinkerSegment[G],
        preparations: ThinkerPreparations,
        make: Callable[[], PreparedPrompt | HeardPrompt],
        done: Callable[[], None],
        *,
        text_bytes: int,
        media_bytes: int,
    ) -> None:
        segment.preparation = preparations.begin(
            segment.key, make, text_bytes=text_bytes, media_bytes=media_bytes
        )
        segment.preparation.add_done_callback(lambda _: done())

    def _make(self, tensors: Tensors, *, speaks: bool) -> PreparedPrompt:
        return self.prompts.prepare(from_tensors(tensors), speaks=speaks)

    def start_reply(self, segment: ThinkerSegment[G], prompt: PreparedPrompt) -> ReplyText:
        """Return an empty reply with the segment's stop conditions. It includes log probabilities
        if the client requests them.
        """
        sampling = segment.settings.sampling
        if sampling.top_logprobs is not None and segment.wants(TEXT):
            segment.logprobs = ReplyLogprobs(self.vocabulary, sampling.top_logprobs)
        return ReplyText(
            Detokenizer(self.vocabulary),
            stop_ids=frozenset({self._stop_id(segment)}),
            stop_strings=sampling.stop,
            limit=min(sampling.max_tokens, self.prompts.context_limit - prompt.reach),
            calls=None if prompt.calls is None else ReplyCalls(prompt.calls),
        )

    def _stop_id(self, segment: ThinkerSegment[G]) -> int:
        """Return the ID that ends the segment's reply."""
        if self.speech is None or segment.wants(self.speech.edge):
            return self.stop_id
        return self.speech.unspoken_stop_id
