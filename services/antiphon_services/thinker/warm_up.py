"""Runs requests before the stage is ready, so that no client has to wait for one-time
initialization.

These requests compile the chat template, compute mel filters, call towers and layers for the first
time, and allocate slots. They use greedy and random sampling, log probabilities (for which vLLM
compiles code), and forward passes with one and with several segments.
"""

from __future__ import annotations

import logging

import numpy as np

from antiphon.errors import FailedPrecondition
from antiphon.runtime.engine import Engine, InputChunk, SegmentSettings
from antiphon.transport.heap import return_unused_memory
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    ImagePart,
    Part,
    TextPart,
    to_tensors,
)
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.warm_up import run_to_the_end
from antiphon_services.thinker.prompt import PromptTooLong
from antiphon_services.thinker.thinker_segment import PROMPT, TEXT, TOKENS

SOUND_S = 0.5
STOP = FinishReason.STOP
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=4)
DRAWN = Sampling(
    temperature=1.0,
    top_k=50,
    top_p=0.9,
    repetition_penalty=1.1,
    seed=0,
    max_tokens=2,
    top_logprobs=1,
)

_log = logging.getLogger(__name__)


def warm_up(engine: Engine, sample_rate_hz: int | None, picture: bytes = b"") -> None:
    """Run two short segments on a new engine. They include audio unless the sample rate is None.

    `picture` is an image file that they also contain, unless it is empty. If the context limit is
    too small for these segments, the engine is not warmed up. Any other failure raises
    `FailedPrecondition`, because client requests would fail as well.
    """
    return_unused_memory()
    keys = []
    for number, sampling in enumerate((GREEDY, DRAWN)):
        key = SegmentKey("warm-up", number)
        engine.admit(key, SegmentSettings("", sampling, frozenset({PROMPT, TEXT, TOKENS})))
        engine.accept(key, _conversation(sample_rate_hz, picture))
        keys.append(key)
    for failed in run_to_the_end(engine, keys):
        if not isinstance(failed.error, PromptTooLong):
            raise FailedPrecondition(
                "the warm-up prompt failed, and all other prompts would fail, too: "
                f"{failed.error}; check the checkpoint's tokenizer, chat template, "
                "preprocessor_config.json and config.json"
            ) from failed.error
        _log.warning("the thinker was not warmed up: %s", failed.error)


def _conversation(sample_rate_hz: int | None, picture: bytes) -> InputChunk:
    """Return a conversation that consists of a word, a short period of silence and the picture."""
    parts: list[Part] = [TextPart("Hello")]
    recordings: tuple[Tensor, ...] = ()
    images: tuple[Tensor, ...] = ()
    if sample_rate_hz is not None:
        parts.append(AudioPart(0))
        recordings = (np.zeros(round(SOUND_S * sample_rate_hz), dtype=np.float32),)
    if picture:
        parts.append(ImagePart(0))
        images = (np.frombuffer(picture, dtype=np.uint8),)
    message = ConversationMessage("user", tuple(parts))
    tensors = to_tensors(Conversation((message,), recordings, images))
    return InputChunk("input", 0, tensors, True, STOP)
