"""The talker of a Ming TTS checkpoint, which performs the computations of the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from antiphon.pipelines.ming_tts import FRAME_WIDTH, HISTORY_LATENTS, LATENT_WIDTH, STEP_LATENTS
from antiphon.transport.device_edge import on_device
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.frame_decoder import FrameDecoder
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.ming_tts.talker.aggregator import Aggregator
from antiphon_services.ming_tts.talker.blocks import affine
from antiphon_services.ming_tts.talker.flow_head import FlowHead, step_draws
from antiphon_services.ming_tts.talker.latent_segment import LatentText
from antiphon_services.ming_tts.talker.module import FlashTalkerModule, MingTalkerModule
from antiphon_services.ming_tts.talker.prompt import LatentPrompt

Floats = npt.NDArray[np.float32]

FIRST_STOP = 4
"""The index of the first step at which the stop head can end an utterance."""


@dataclass(frozen=True, slots=True)
class LatentTurn:
    """The work of a segment in a step: parts of its prompt, known frames, or a draw."""

    parts: Sequence[PromptPart[LatentText]] = ()
    known: Sequence[KnownPart[LatentText]] = ()
    draw: FrameDraw[None] | None = None


@dataclass(frozen=True, slots=True)
class LatentDrawn:
    """A frame, and the logits of the stop head at its state.

    `frame` is a float32 array of shape [1, 256], and `stop` is a float32 array of shape [2].
    """

    frame: Floats
    stop: Floats
    mark: None = None

    def read(self) -> LatentDrawn:
        """Return this object, because the result is already on the host."""
        return self


@dataclass(frozen=True, slots=True)
class LatentOutcome:
    """The result of a turn.

    `drawn` is set if the turn had a draw. `known_stops` is set if the turn had known frames. It is
    a float32 array of shape [n, 2] that contains the logits of the stop head at these frames.
    """

    drawn: LatentDrawn | None = None
    known_stops: Floats | None = None


class MingTalker(FrameDecoder):
    """Performs forward passes and draws for up to `slots` sessions of `context_limit` positions.

    A frame contains the latents of one step. Raises `InvalidArgument` if the slots do not fit in
    memory.
    """

    code_sizes = ()
    """Empty, because this talker does not draw codes."""

    def __init__(
        self, module: MingTalkerModule | FlashTalkerModule, *, context_limit: int, slots: int
    ) -> None:
        stack = module.stack
        decoder = Decoder(stack, context_limit, batch_invariant=True, exact_norms=False)
        super().__init__(decoder, slots, context_limit)
        self._words: Tensor = stack.embed_tokens.weight
        self._speaker, self._stop = affine(module.spk_head), affine(module.stop_head)
        self._flow = FlowHead(module.flow_head, noisy_end=module.noisy_end)
        self._aggregator = Aggregator(module.latent_aggregator)
        self._device = self._words.device
        # Both tensors are indexed by slot. They contain the latents before the next step and the
        # row of that step.
        self._history = self._words.new_zeros(slots, HISTORY_LATENTS, LATENT_WIDTH)
        self._pending = torch.zeros_like(self._words[:1]).repeat(slots, 1)

    def rows(self, prompt: LatentPrompt, start: int, stop: int) -> Tensor:
        """Return rows of a prompt, as a tensor of shape [stop - start, hidden]."""
        rows = embedding(on_device(prompt.ids[start:stop], self._device), self._words)
        speaker_row = prompt.speaker_row
        if speaker_row is not None and start <= speaker_row < stop:
            rows[speaker_row - start] = 0
            if prompt.speaker is not None:
                speaker = torch.tensor(prompt.speaker).to(rows)
                rows[speaker_row - start] = linear(speaker, *self._speaker)
        # The last rows contain the recording, with four latents per row.
        text_rows = len(prompt.ids) - len(prompt.latents) // STEP_LATENTS
        if stop > text_rows:
            first = max(start, text_rows)
            heard = prompt.latents.reshape(-1, FRAME_WIDTH)[first - text_rows : stop - text_rows]
            rows[first - start :] = self._aggregated(heard)
        return rows

    def begin(self, slot: int, prompt: LatentPrompt) -> None:
        """Prepare the slot for draws after the prompt.

        The last row of the prompt is appended together with the first draw.
        """
        count = len(prompt.ids)
        self._pending[slot] = self.rows(prompt, count - 1, count)[0]
        self._history[slot] = 0
        self._remember(slot, prompt.past)

    def step(self, turns: Sequence[LatentTurn]) -> list[LatentOutcome]:
        """Append all rows in one forward pass and then draw all frames in one run of the flow.

        The state is only updated at the end, so this method can be called again after an error.
        """
        parts = [part for turn in turns for part in turn.parts]
        known = [part for turn in turns for part in turn.known]
        wanted = [turn.draw for turn in turns if turn.draw is not None]
        arranged = self.arrange([*parts, *known], wanted)
        rows = [self.rows(each.prompt.current, each.start, each.stop) for each in parts]
        rows += [self._known_rows(each) for each in known]
        if wanted:
            slots = on_device([each.slot for each in arranged.filled], self._device)
            rows.append(self._pending[slots])
        joined = torch.cat(rows)
        states, _ = self._decoder.append(joined, arranged.plan)
        stops = linear(states, *self._stop).float().cpu().numpy()
        row = sum(each.stop - each.start for each in parts)
        known_stops: dict[int, list[Floats]] = defaultdict(list)
        for each in known:
            known_stops[each.slot].append(stops[row : row + len(each.frames)])
            row += len(each.frames)
        drawn: dict[int, LatentDrawn] = {}
        if wanted:
            count = len(arranged.draws)
            frames = self._draw(states[row : row + count], arranged.draws)
            for place, draw in enumerate(arranged.draws):
                drawn[draw.slot] = LatentDrawn(frames[place : place + 1], stops[row + place])
        for each in known:
            self._pending[each.slot] = self._aggregated(each.frames[-1:])[0]
            self._remember(each.slot, each.frames)
        return [
            LatentOutcome(
                drawn[turn.draw.slot] if turn.draw is not None else None,
                np.concatenate(known_stops[turn.known[0].slot]) if turn.known else None,
            )
            for turn in turns
        ]

    def _draw(self, states: Tensor, draws: Sequence[FrameDraw[None]]) -> Floats:
        """Return the frames of the draws, as a float32 array of shape [n, 256].

        `states` has shape [n, hidden].
        """
        slots = on_device([each.slot for each in draws], self._device)
        samplings = [each.sampling for each in draws]
        numbers = [
            step_draws(each.seed, draw.step, self._flow.noises if each.temperature > 0 else 0)
            for each, draw in zip(samplings, draws, strict=True)
        ]
        history = self._history[slots]
        latents = self._flow.solve(states, history, numbers, [s.temperature for s in samplings])
        rows = self._aggregator.rows(latents)
        self._history[slots] = torch.cat((history[:, STEP_LATENTS:], latents), 1)
        self._pending[slots] = rows
        made: Floats = latents.flatten(1).float().cpu().numpy()
        return made

    def _known_rows(self, part: KnownPart[LatentText]) -> Tensor:
        """Return rows of shape [n, hidden] for draws whose frames are known."""
        before = np.concatenate((part.before, part.frames[:-1]))
        rows = self._aggregated(before)
        return rows if part.step else torch.cat((self._pending[part.slot][None], rows))

    def _aggregated(self, frames: Floats) -> Tensor:
        """Return rows of shape [n, hidden] for frames of shape [n, 256]."""
        latents = torch.tensor(frames).to(self._words).view(-1, STEP_LATENTS, LATENT_WIDTH)
        return self._aggregator.rows(latents)

    def _remember(self, slot: int, latents: Floats) -> None:
        """Append latents, or the latents of frames, to the history of the slot."""
        heard = torch.tensor(latents).to(self._history).view(-1, LATENT_WIDTH)
        joined = torch.cat((self._history[slot], heard))
        self._history[slot] = joined[-HISTORY_LATENTS:]


def is_last(step: int, stop: Floats) -> bool:
    """Return whether the stop head ends the speech with the frame of this step."""
    return step >= FIRST_STOP and bool(stop[1] > stop[0])
