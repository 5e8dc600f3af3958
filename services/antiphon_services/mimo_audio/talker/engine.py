"""The talker engine, which decodes the text and codes of many segments. Each step decodes one
position per segment.

Prompts are prepared on worker threads, because encoding recordings takes a long time. Each step
performs one forward pass, which includes up to `prefill_rows` prompt rows and one row for each
segment whose prompt is complete. Each of these segments samples a token in the same step, and also
a group of frames if the token stands for one.

An answer's text consists of all of its tokens, and its speech consists of all groups before the
first end-of-speech token. A group at the last position is omitted, because the vendor's code drops
the position that ends the answer. This is true even if the answer only ends because it has reached
the maximum length. The vendor's code also drops all groups before a later start-of-speech token.
This engine has already emitted them by that time, so it keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon.pipelines.mimo_audio import CODES, INPUT, TALKER, TEXT
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, SegmentSettings
from antiphon.values.chunk import Tensors
from antiphon.values.conversation import from_tensors
from antiphon.values.options import SPEECH, TRANSCRIPTION
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon.wire.logprobs import logprobs_to_tensors
from antiphon_services.lm.readback import Drawn
from antiphon_services.lm.spoken_engine import JointSpokenEngine
from antiphon_services.mimo_audio.talker.dialogue_segment import (
    DialogueInput,
    DialogueSegment,
    Frames,
)
from antiphon_services.mimo_audio.talker.known_answer import (
    ANEW,
    KnownAnswer,
    check_history,
    known_answer,
)
from antiphon_services.mimo_audio.talker.model import DialogueModel
from antiphon_services.mimo_audio.talker.prompt import TaskPrompt, TaskPromptFactory
from antiphon_services.mimo_audio.talker.voice_options import (
    TaskRequest,
    check_sampling,
    read_request,
)
from antiphon_services.stage.budgets import PREFILL_ROWS
from antiphon_services.stage.preparation import Preparations
from antiphon_services.text.detokenizer import Detokenizer, Vocabulary
from antiphon_services.text.logprobs import ReplyLogprobs
from antiphon_services.text.stopping import ReplyText

OUTPUTS = frozenset({TEXT, CODES})


class SpeechTextEngine(JointSpokenEngine[DialogueSegment, DialogueModel]):
    """An engine with the input edge `input` and the output edges `text` and `codes`.

    Implements `antiphon.runtime.engine.PreparingEngine`. `max_text_bytes` is the maximum size of
    the texts in a conversation, and `most_samples` is the maximum length of a live recording.
    """

    role, edge = TALKER, CODES

    def __init__(
        self,
        model: DialogueModel,
        prompts: TaskPromptFactory,
        vocabulary: Vocabulary,
        context_limit: int,
        *,
        max_text_bytes: int,
        most_samples: int,
        prefill_rows: int = PREFILL_ROWS,
        preparations: Preparations[TaskPrompt] | None = None,
    ) -> None:
        super().__init__(model, context_limit, prefill_rows=prefill_rows, preparations=preparations)
        self._prompts = prompts
        self._vocabulary = vocabulary
        self._ids = prompts.tokenizer.ids
        self._max_text_bytes = max_text_bytes
        self._most_samples = most_samples

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment.

        Raises `InvalidArgument` if other outputs are requested, and the errors of `new_segment`.
        """
        if not settings.outputs or not settings.outputs <= OUTPUTS:
            raise InvalidArgument(
                f"outputs: the {TALKER} only generates {TEXT!r} and {CODES!r}, got "
                f"{sorted(settings.outputs)}",
                field="outputs",
            )
        check_history(settings.history, self._model.draws.vocabulary, self._model.code_sizes)
        segment = self._segments[key] = self.new_segment(key, settings)
        segment.returns = key.segment > 0 or settings.live

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> DialogueSegment:
        """Create a segment.

        Raises `InvalidArgument` if an option, a voice or a sampling setting is not supported.
        """
        check_sampling(settings.sampling)
        if settings.voice:
            raise InvalidArgument(
                "voice: the model has no named voices; use options.reference_audio",
                field="voice",
            )
        speaks = CODES in settings.outputs
        request = read_request(settings.options, speaks=speaks)
        said = DialogueInput(
            INPUT,
            self._check_size,
            partial(self._make, request=request, speaks=speaks),
            live=settings.live,
            most_samples=self._most_samples,
        )
        return DialogueSegment(
            key,
            "",
            settings.sampling,
            said,
            given=frozenset(settings.asked.given()),
            history=settings.history,
            code_sampling=request.code_sampling(settings.sampling),
            wants_text=TEXT in settings.outputs,
            wants_codes=speaks,
        )

    def _check_size(self, json_bytes: int) -> None:
        """Raise `InvalidArgument` if the JSON is too large for the messages to fit into the
        context.
        """
        if json_bytes > self._max_text_bytes:
            raise InvalidArgument(
                f"messages: have {json_bytes} bytes, which is too much; shorten them",
                field="messages",
            )

    def _make(self, tensors: Tensors, request: TaskRequest, *, speaks: bool) -> TaskPrompt:
        """Create the prompt for an `input` chunk.

        Raises `InvalidArgument` or `NotImplementedYet` if the conversation is not supported.
        """
        said = from_tensors(tensors)
        if said.tools:
            raise NotImplementedYet(
                "tools: this model can't call functions; leave them out", field="tools"
            )
        if request.task == SPEECH:
            return self._prompts.speech(said, request)
        if request.task == TRANSCRIPTION:
            return self._prompts.transcription(said)
        return self._prompts.dialogue(said, request, speaks=speaks)

    def begin(self, segment: DialogueSegment, prompt: TaskPrompt) -> Sequence[EngineEvent]:
        """Start decoding after the prompt has been prepared. Only known positions are emitted."""
        assert segment.slot is not None
        segment.sampling = prompt.sampling(segment.sampling, segment.given)
        room = self._context_limit - len(prompt.ids) + 1
        known = self._known(segment)
        segment.reply = ReplyText(
            Detokenizer(self._vocabulary),
            stop_ids=prompt.ends,
            stop_strings=segment.sampling.stop,
            limit=min(segment.sampling.max_tokens, room),
        )
        asked = segment.sampling.top_logprobs
        if asked is not None and segment.wants_text:
            segment.logprobs = ReplyLogprobs(self._vocabulary, asked)
        prompt = known.behind(prompt)
        segment.prompt.hold(prompt)
        self._model.begin(segment.slot, prompt)
        return self._repeated(segment, known)

    def _known(self, segment: DialogueSegment) -> KnownAnswer:
        """Return the positions that do not have to be drawn.

        If log probabilities are requested, all positions are drawn, because known positions do not
        have any.
        """
        asked = segment.sampling.top_logprobs is not None
        history, segment.history = None if asked else segment.history, None
        return known_answer(history, self._prompts.empty, self._ids.group)

    def _repeated(self, segment: DialogueSegment, known: KnownAnswer) -> list[EngineEvent]:
        """Emit known positions as if they had been drawn.

        Raises `InvalidArgument` if there are positions after the end of the answer.
        """
        events: list[EngineEvent] = []
        for number, (id_, frames) in enumerate(zip(known.ids.tolist(), known.codes, strict=True)):
            events += self._push(segment, id_, frames)
            if segment.ended:
                raise InvalidArgument(
                    f"history.ids: the answer ends at index {number}, but more IDs follow; {ANEW}",
                    field="history.ids",
                )
        return events

    def take_drawn(self, segment: DialogueSegment, drawn: Drawn) -> Sequence[EngineEvent]:
        """Return the events for a position that was drawn. The position may end the segment."""
        if not drawn.decided:
            return self.undecided(segment)
        segment.shown = segment.launched
        frames = drawn.ids[1:].reshape(-1, self._model.draws.channels)
        return self._push(segment, int(drawn.ids[0]), frames.astype(np.uint16))

    def _push(self, segment: DialogueSegment, id_: int, frames: Frames) -> list[EngineEvent]:
        """Return the events for one more position. The position may end the segment."""
        assert segment.reply is not None
        if id_ == self._ids.group:
            segment.groups.append(frames)
        if segment.logprobs is not None:
            assert segment.slot is not None
            segment.logprobs.push(*self._model.draws.scores.pop(segment.slot))
        release = segment.reply.push(id_)
        events: list[EngineEvent] = []
        if segment.wants_text:
            tensors: Tensors = {
                "ids": np.array([id_], np.int32),
                "utf8": np.frombuffer(release.text.encode(), np.uint8),
            }
            if segment.logprobs is not None:
                known = segment.logprobs.release(release.text)
                tensors = {**tensors, **logprobs_to_tensors(known)}
            position = len(segment.reply.ids) - 1
            events.append(Emitted(segment.key, TEXT, position, tensors, release.finish))
        leaving = segment.leaving(release, self._ids.group, self._ids.speech_end)
        if segment.wants_codes and (leaving is not None or release.finish):
            codes: Tensors = {} if leaving is None else {CODES: leaving}
            events.append(Emitted(segment.key, CODES, segment.frames, codes, release.finish))
            segment.frames += 0 if leaving is None else len(leaving)
        if release.finish is not None:
            segment.end()
            events.append(_cost(segment, release.finish))
        return events

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the usage of the segment up to this point."""
        return _cost(self._segments[key], FinishReason.CANCELLED)


def _cost(segment: DialogueSegment, reason: FinishReason) -> Completed:
    """Return the usage of a segment in positions."""
    rows = segment.prompt.prompt_rows
    return Completed(
        segment.key,
        reason,
        rows - segment.prompt.held.known if rows else 0,
        0 if segment.reply is None else len(segment.reply.ids),
        input_audio_positions=segment.prompt.held.heard if rows else 0,
    )
