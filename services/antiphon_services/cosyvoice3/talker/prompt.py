"""The prompt of the talker, as ids. This module does not import torch.

    sos | text of the prompt, text to speak | task | codes of the prompt

Text ids come from the tokenizer, the others are speech ids. Mirrors `CosyVoice3LM.inference` of the
vendor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.pipelines.cosyvoice3 import MEL_BINS, SPEECH_IDS

SOS, END, TASK, FILL = SPEECH_IDS, SPEECH_IDS + 1, SPEECH_IDS + 2, SPEECH_IDS + 3
"""Each id from `SPEECH_IDS` on ends an utterance when it is sampled; the model is trained for
`END`. While the text of an utterance is incomplete, each of them asks for more text; the model is
trained for `FILL`, and the vendor's code fails with any other."""

SILENT_IDS = frozenset((1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323))
MOST_SILENT = 5
"""Maximum of consecutive silent codes that are emitted; further ones only continue the context."""

DRAWS_OF_A_TEXT_ID, EARLY_OF_A_TEXT_ID = 20, 2
"""Maximum of draws, and number of early draws, for each id of the text. Early draws exclude `SOS`.
This is the vendor's minimum length: it excludes an id other than `END`, so speech may end at once.
`UtterancePrompt.least_draws` is the minimum length that a request sets."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Voice:
    """The vector `speaker`, float32 [1, width], and the `codes`, int32 [P], and `mel` frames,
    float32 [2 P, bins], of a recording. Code2wav receives all of them. P may be 0."""

    speaker: npt.NDArray[np.float32]
    codes: npt.NDArray[np.int32]
    mel: npt.NDArray[np.float32]

    @classmethod
    def of_speaker(cls, speaker: npt.NDArray[np.float32]) -> Voice:
        """Return a voice without a recording."""
        return cls(speaker, np.zeros(0, np.int32), np.zeros((0, MEL_BINS), np.float32))


@dataclass(frozen=True, slots=True)
class UtterancePrompt:
    """Rows of ids, whether each is a speech id, and the limits of draws after them.

    The first `early_draws` of at most `most_draws` are early, and the first `least_draws` do not
    end the utterance. For a text in pieces this is one turn of an utterance, after `first` rows of
    earlier turns and `drawn` draws, which the limits include. `forced` earlier turns were forced to
    end. If a turn `asks`, another turn follows it.
    """

    ids: Ids
    speech: npt.NDArray[np.bool_]
    most_draws: int
    early_draws: int
    least_draws: int
    first: int = 0
    drawn: int = 0
    forced: int = 0
    asks: bool = False


@dataclass(frozen=True, slots=True)
class SpeechPrompt:
    """The voice, and the prompts of the utterances, which are spoken in order."""

    voice: Voice
    utterances: Sequence[UtterancePrompt]


def make_utterance(
    prompt_text: Sequence[int],
    text: Sequence[int],
    codes: npt.NDArray[np.int32],
    *,
    least_draws: int,
    most_codes: int,
    context_limit: int,
) -> UtterancePrompt:
    """Return the prompt of an utterance.

    The text, `most_codes`, and the positions that the rows leave of `context_limit` limit its
    draws. There are no draws if the rows do not fit.
    """
    words = [*prompt_text, *text]
    ids = [SOS, *words, TASK, *codes.tolist()]
    speech = np.ones(len(ids), np.bool_)
    speech[1 : 1 + len(words)] = False
    most = min(DRAWS_OF_A_TEXT_ID * len(text), most_codes, context_limit - len(ids) + 1)
    early = EARLY_OF_A_TEXT_ID * len(text)
    return UtterancePrompt(np.array(ids, np.int64), speech, max(most, 0), early, least_draws)
