"""Where a prompt may be cut: what the thinker has told of a recording goes in as it is told."""

import numpy as np
import pytest

from antiphon.pipelines.qwen3_omni import window_positions
from antiphon.runtime.engine import InputChunk
from antiphon_services.qwen3_omni.talker.prompt import TalkerPrompt
from tests.unit.services.qwen3_omni.talker.talker_lab import NEWLINE, Lab, Turn

WINDOW = 40


def heard_twice(lab: Lab, audio: int) -> Turn:
    """A turn with a recording of so many positions, words, and one of a window and five."""
    special = lab.special
    said = [special.audio] * audio, [special.audio] * (WINDOW + 5)
    content = [*lab.text(1, 2), *said[0], *lab.text(2, 4), *said[1], *lab.text(3, 3)]
    header = [special.im_start, special.assistant, NEWLINE]
    return lab.make_turn(lab.segment(special.user, content) + header, lab.text(4, 5))


def window_prompt(lab: Lab) -> TalkerPrompt:
    vocabulary = lab.model.config.thinker_config.text_config.vocab_size
    return TalkerPrompt(lab.special, vocabulary, lab.shape.hidden, window=WINDOW)


@pytest.mark.parametrize("audio", [WINDOW - 1, WINDOW, 3 * WINDOW, 3 * WINDOW + 1])
def test_prompt_may_be_cut_behind_each_whole_window_of_a_recording(small: Lab, audio: int) -> None:
    turn, prompt = heard_twice(small, audio), window_prompt(small)
    prompt.accept(turn.prompt_chunks()[0])
    first = int(np.flatnonzero(turn.prompt == small.special.audio)[0])
    second = first + audio + 4
    ends = [first + at for at in range(WINDOW, audio + 1, WINDOW)]
    assert prompt.cuts.tolist() == [*ends, second + WINDOW, prompt.user_rows]


def test_cuts_of_a_prompt_that_grows_are_known_when_their_rows_are_ready(small: Lab) -> None:
    turn = heard_twice(small, 3 * WINDOW)
    whole = window_prompt(small)
    whole.accept(turn.prompt_chunks()[0])
    growing = window_prompt(small)
    first = int(np.flatnonzero(turn.prompt == small.special.audio)[0])
    told = 0
    for end in [first + at for at in range(0, 3 * WINDOW + 1, WINDOW)]:
        tensors = {"ids": turn.prompt[told:end], "more_ids": np.ones(1, np.uint8)}
        growing.accept(InputChunk("prompt", told, tensors))
        rows = slice(max(told - first, 0), end - first)
        positions = turn.row_positions[rows]
        if len(positions):
            brought = {"rows": turn.rows[rows], "row_positions": positions}
            growing.accept(InputChunk("prompt", end, brought))
        told = end
        assert growing.ready_rows == end
        assert growing.cuts.tolist() == [at for at in whole.cuts.tolist() if at <= end]


@pytest.mark.parametrize(
    ("n_window", "n_window_infer", "positions"), [(50, 800, 104), (50, 400, 52), (50, 250, 0)]
)
def test_window_takes_the_positions_of_its_whole_chunks(
    n_window: int, n_window_infer: int, positions: int
) -> None:
    assert window_positions(n_window, n_window_infer) == positions
