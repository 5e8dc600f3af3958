"""A segment of the thinker, which processes a conversation and emits its answer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.pipelines.dynin_omni import IMAGE_TOKENS, INPUT, TEXT, THINKER, UNITS
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    InputChunk,
    SegmentSettings,
)
from antiphon.values.chunk import Tensors
from antiphon.values.conversation import from_tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.diffusion.masked_answer import MaskedAnswer
from antiphon_services.dynin_omni.thinker.task_answers import AnswerMaker
from antiphon_services.dynin_omni.thinker.task_prompts import (
    AnswerKind,
    MaskedPrompt,
    MaskedPromptFactory,
)
from antiphon_services.dynin_omni.thinker.task_request import (
    AnswerRequest,
    check_masked_sampling,
    read_answer_request,
)
from antiphon_services.dynin_omni.thinker.task_tokens import TaskTokens
from antiphon_services.lm.spoken_text import ConversationInput
from antiphon_services.stage.preparation import Preparations
from antiphon_services.text.detokenizer import Detokenizer, Vocabulary
from antiphon_services.text.stopping import ReplyText

OUTPUTS = frozenset({TEXT, UNITS, IMAGE_TOKENS})
EDGES = {AnswerKind.TEXT: TEXT, AnswerKind.SPEECH: UNITS, AnswerKind.IMAGE: IMAGE_TOKENS}


class MaskedInput(ConversationInput[MaskedPrompt]):
    """Receives the `input` of a segment and converts it to a prompt."""

    @property
    def rows(self) -> int:
        """The length of the prompt in tokens."""
        return len(self.held.ids)


class SegmentMaker:
    """Creates segments for one checkpoint.

    `max_text_bytes` is the maximum size of the messages as JSON. `most_samples` is the maximum
    length of a live recording.
    """

    def __init__(
        self,
        prompts: MaskedPromptFactory,
        answers: AnswerMaker,
        tokens: TaskTokens,
        vocabulary: Vocabulary,
        *,
        max_text_bytes: int,
        most_samples: int,
    ) -> None:
        self.prompts, self.answers = prompts, answers
        self.tokens, self.vocabulary = tokens, vocabulary
        self.max_text_bytes, self.most_samples = max_text_bytes, most_samples

    def __call__(self, key: SegmentKey, settings: SegmentSettings) -> TaskSegment:
        """Create a segment.

        Raises `InvalidArgument` or `NotImplementedYet` if a setting is not supported.
        """
        if not settings.outputs or not settings.outputs <= OUTPUTS:
            raise InvalidArgument(
                f"outputs: the {THINKER} only generates {', '.join(sorted(OUTPUTS))}, got "
                f"{sorted(settings.outputs)}",
                field="outputs",
            )
        if settings.voice:
            raise InvalidArgument(
                "voice: the model has no named voices; use options.style", field="voice"
            )
        check_masked_sampling(settings.sampling)
        return TaskSegment(self, key, settings)

    def check_size(self, json_bytes: int) -> None:
        """Raise `InvalidArgument` if the JSON is too large for the messages to fit into the
        context.
        """
        if json_bytes > self.max_text_bytes:
            raise InvalidArgument(
                f"messages: have {json_bytes} bytes, which is too much; shorten them",
                field="messages",
            )


class TaskSegment:
    """Implements `antiphon_services.diffusion.masked_engine.MaskedSegment`."""

    def __init__(self, maker: SegmentMaker, key: SegmentKey, settings: SegmentSettings) -> None:
        self._maker, self._key, self._settings = maker, key, settings
        request = read_answer_request(settings.options, settings.outputs)
        self._request = request
        self._input = MaskedInput(
            INPUT,
            maker.check_size,
            partial(_make, maker.prompts, request),
            live=settings.live,
            most_samples=maker.most_samples,
        )
        self._prompt: MaskedPrompt | None = None
        self._reply: ReplyText | None = None
        self._made = 0
        self.answer: MaskedAnswer | None = None

    def accept(self, chunk: InputChunk) -> None:
        """Store the conversation. Raises `InvalidArgument` if it is not valid."""
        self._input.accept(chunk)

    def prepare(self, preparations: Preparations[Any]) -> Future[MaskedPrompt] | None:
        """Implements `MaskedSegment.prepare`."""
        return self._input.begin(self._key, preparations)

    def begin(self, prompt: MaskedPrompt) -> None:
        """Start the answer. Raises `InvalidArgument` if there isn't enough room for it after the
        prompt.
        """
        asked, answers = self._settings.asked, self._maker.answers
        self.answer = answers.make(prompt, self._request, self._settings.sampling, asked)
        self._prompt = prompt
        if prompt.mode.kind is AnswerKind.TEXT:
            self._reply = ReplyText(
                Detokenizer(self._maker.vocabulary),
                stop_ids=answers.ends(AnswerKind.TEXT),
                stop_strings=self._settings.sampling.stop,
                limit=answers.count(prompt, asked),
            )

    def settled(self, ids: Sequence[int], *, done: bool) -> Sequence[EngineEvent]:
        """Return the events for tokens that are final.

        A text answer may end at a stop string before `done` is true.
        """
        assert self._prompt is not None
        if self._reply is not None:
            tensors, finish = self._text(ids, self._reply)
        else:
            tensors, finish = self._others(ids, self._prompt.mode.kind, done=done)
        edge, events = EDGES[self._prompt.mode.kind], list[EngineEvent]()
        if edge in self._settings.outputs:
            events.append(Emitted(self._key, edge, self._made, tensors, finish))
        self._made += len(next(iter(tensors.values()))) if tensors else 0
        if finish is None:
            return events
        silent = sorted(self._settings.outputs - {edge})
        events += [Emitted(self._key, each, 0, finish_reason=finish) for each in silent]
        return [*events, self._counts(finish)]

    def so_far(self) -> Completed:
        """Return the token counts up to this point."""
        return self._counts(FinishReason.CANCELLED)

    def _text(self, ids: Sequence[int], reply: ReplyText) -> tuple[Tensors, FinishReason | None]:
        """Return the text tokens up to the end of the answer, together with the decoded text."""
        text, taken, finish = "", list[int](), None
        for id_ in ids:
            release = reply.push(id_)
            taken.append(id_)
            text, finish = text + release.text, release.finish
            if finish is not None:
                break
        tensors: Tensors = {
            "ids": np.array(taken, np.int32),
            "utf8": np.frombuffer(text.encode(), np.uint8),
        }
        return tensors, finish

    def _others(
        self, ids: Sequence[int], kind: AnswerKind, *, done: bool
    ) -> tuple[Tensors, FinishReason | None]:
        """Return the speech units up to the end of the answer, or the image tokens.

        They are numbered from 0.
        """
        tokens = self._maker.tokens
        ends, finish = self._maker.answers.ends(kind), FinishReason.LENGTH
        if kind is AnswerKind.IMAGE:
            finish = FinishReason.STOP
        first = tokens.first_image if kind is AnswerKind.IMAGE else tokens.first_unit
        at = next((at for at, each in enumerate(ids) if each in ends), None)
        if at is not None:
            ids, finish = ids[:at], FinishReason.STOP
        tensors: Tensors = {}
        if len(ids):
            tensors = {EDGES[kind]: (np.array(ids, np.int64) - first).astype(np.uint16)}
        return tensors, finish if done else None

    def _counts(self, finish: FinishReason) -> Completed:
        prompt = self._prompt
        if prompt is None:
            return Completed(self._key, finish, 0, 0)
        return Completed(
            self._key,
            finish,
            prompt.positions,
            self._made,
            input_audio_positions=prompt.heard,
            input_image_positions=prompt.seen,
        )


def _make(prompts: MaskedPromptFactory, request: AnswerRequest, tensors: Tensors) -> MaskedPrompt:
    """Create the prompt from an `input` chunk.

    Raises `InvalidArgument` or `NotImplementedYet` if the conversation is not supported.
    """
    return prompts.make(from_tensors(tensors), request)
