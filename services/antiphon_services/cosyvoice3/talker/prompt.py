"""The prompt of the talker, as token IDs. This module does not import torch.

The prompt has the following layout:

    sos | prompt text, text to speak | task | prompt codes

The text is tokenized by the tokenizer. All other tokens are speech tokens. This module mirrors the
vendor's `CosyVoice3LM.inference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.pipelines.cosyvoice3 import MEL_BINS, SPEECH_IDS

SOS, END, TASK, FILL = SPEECH_IDS, SPEECH_IDS + 1, SPEECH_IDS + 2, SPEECH_IDS + 3
"""Speech tokens that control the utterance.

Sampling any token from `SPEECH_IDS` upwards ends the utterance. The model is trained to use `END`.
While the text of an utterance is incomplete, each of these tokens requests more text instead. The
model is trained to use `FILL`, and the vendor's code fails if it samples any other token.
"""

SILENT_IDS = frozenset((1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323))
MOST_SILENT = 5
"""The maximum number of consecutive silent codes to emit. Further silent codes are only added to
the context.
"""

DRAWS_OF_A_TEXT_ID, EARLY_OF_A_TEXT_ID = 20, 2
"""The maximum number of draws, and the number of early draws, per text token.

Early draws cannot sample `SOS`. The vendor uses this rule as a minimum length, but because it
excludes a token other than `END`, speech may still end immediately. `UtterancePrompt.least_draws`
is the minimum length that a request can set.
"""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Voice:
    """The voice of a recording. Code2wav receives all three arrays.

    `speaker` is a float32 array of shape [1, width], `codes` is an int32 array of shape [P], and
    `mel` is a float32 array of shape [2 P, bins]. P is 0 if the voice is only a speaker vector.
    """

    speaker: npt.NDArray[np.float32]
    codes: npt.NDArray[np.int32]
    mel: npt.NDArray[np.float32]

    @classmethod
    def of_speaker(cls, speaker: npt.NDArray[np.float32]) -> Voice:
        """Create a voice without a recording."""
        return cls(speaker, np.zeros(0, np.int32), np.zeros((0, MEL_BINS), np.float32))


@dataclass(frozen=True, slots=True)
class UtterancePrompt:
    """The prompt of an utterance and limits for the draws that follow it.

    `speech` states for each of the `ids` whether it is a speech token. The utterance has up to
    `most_draws` draws. The first `early_draws` of them are early, and the first `least_draws`
    cannot end the utterance.

    If the text is streamed, the prompt is one turn of an utterance. It follows `first` rows of
    earlier turns and `drawn` draws, which count towards the limits. `forced` is the number of
    earlier turns whose end was forced. If `asks` is true, another turn follows.
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
    """A voice, and the prompts for the utterances in the order in which they are spoken."""

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
    """Create the prompt of an utterance.

    The number of draws is limited by the length of the text, by `most_codes`, and by the positions
    that remain within `context_limit`. If the rows do not fit, there are no draws.
    """
    words = [*prompt_text, *text]
    ids = [SOS, *words, TASK, *codes.tolist()]
    speech = np.ones(len(ids), np.bool_)
    speech[1 : 1 + len(words)] = False
    most = min(DRAWS_OF_A_TEXT_ID * len(text), most_codes, context_limit - len(ids) + 1)
    early = EARLY_OF_A_TEXT_ID * len(text)
    return UtterancePrompt(np.array(ids, np.int64), speech, max(most, 0), early, least_draws)
