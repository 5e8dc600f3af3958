"""What the talker is given before it draws, as ids. No torch here.

    sos | text of the prompt, text to speak | task | codes of the prompt

Text ids are of the tokenizer, the others are speech ids. Mirrors `CosyVoice3LM.inference` of the
vendor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.pipelines.cosyvoice3 import MEL_BINS, SPEECH_IDS

SOS, END, TASK, FILL = SPEECH_IDS, SPEECH_IDS + 1, SPEECH_IDS + 2, SPEECH_IDS + 3
"""Every id from `SPEECH_IDS` on ends an utterance when it is drawn; `END` is the one that is
trained to. While the text of an utterance still comes, every one of them asks for more of it;
`FILL` is the one that is trained to, and the vendor's code fails with any other."""

SILENT_IDS = frozenset((1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323))
MOST_SILENT = 5
"""Silent codes in a row that are heard; the talker goes on from the others all the same."""

DRAWS_OF_A_TEXT_ID, EARLY_OF_A_TEXT_ID = 20, 2
"""Most draws for each id of the text, and early ones, among which `SOS` is excluded. That is the
vendor's minimum length: it excludes another id than `END`, so that speech may end at once.
`UtterancePrompt.least_draws` is a minimum length that a request asks for."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Voice:
    """`speaker` float32 [1, width], `codes` int32 [P] and `mel` float32 [2 P, bins] of a recording,
    all of which go to code2wav; P may be 0."""

    speaker: npt.NDArray[np.float32]
    codes: npt.NDArray[np.int32]
    mel: npt.NDArray[np.float32]

    @classmethod
    def of_speaker(cls, speaker: npt.NDArray[np.float32]) -> Voice:
        """A voice without a recording."""
        return cls(speaker, np.zeros(0, np.int32), np.zeros((0, MEL_BINS), np.float32))


@dataclass(frozen=True, slots=True)
class UtterancePrompt:
    """Rows: ids, and whether each is a speech id; and how many draws may follow, of which the first
    are early. The first `least_draws` of them do not end the utterance.

    Of an utterance whose text comes in pieces it is one turn, behind the `first` rows of those
    before and `drawn` draws, which the numbers of draws include; so many turns before it were
    `forced` to end. One that `asks` is followed by another when it ends.
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
    """The voice, and the prompts of the utterances, which are spoken one after the other."""

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
    """The prompt of an utterance. Draws are bounded by the text, by `most_codes`, and by what the
    rows leave of `context_limit` positions: none where these do not fit."""
    words = [*prompt_text, *text]
    ids = [SOS, *words, TASK, *codes.tolist()]
    speech = np.ones(len(ids), np.bool_)
    speech[1 : 1 + len(words)] = False
    most = min(DRAWS_OF_A_TEXT_ID * len(text), most_codes, context_limit - len(ids) + 1)
    early = EARLY_OF_A_TEXT_ID * len(text)
    return UtterancePrompt(np.array(ids, np.int64), speech, max(most, 0), early, least_draws)
