"""Input that a segment cannot have is refused, each fault with its own error."""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec import structs

from antiphon.errors import (
    AntiphonError,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotImplementedYet,
)
from antiphon.runtime.engine import InputChunk
from antiphon_services.qwen3_omni.talker.prompt import TalkerPrompt
from tests.unit.services.qwen3_omni.talker.talker_lab import Lab, Turn


def make_prompt(lab: Lab) -> TalkerPrompt:
    vocabulary = lab.model.config.thinker_config.text_config.vocab_size
    return TalkerPrompt(lab.special, vocabulary, lab.shape.hidden)


def make_turn(lab: Lab) -> Turn:
    return lab.make_turn(lab.question(1, audio=4), lab.text(2, 5))


def ids(*values: int) -> dict[str, np.ndarray]:
    return {"ids": np.array(values, np.int32)}


def swap_id(name: str) -> Callable[[Turn, Lab], InputChunk]:
    def make(turn: Turn, lab: Lab) -> InputChunk:
        prompt = turn.prompt.copy()
        prompt[-6] = getattr(lab.special, name)
        return InputChunk("prompt", 0, {"ids": prompt})

    return make


def shown(*grids: tuple[int, int, int], step: int = 1) -> dict[str, np.ndarray]:
    """What a prompt says of the images in it."""
    return {
        "grids": np.array(grids, np.int32),
        "steps": np.full(len(grids), step, np.int32),
    }


def picture(turn: Turn, lab: Lab) -> np.ndarray:
    """The turn's prompt with four image ids in the user's words."""
    at = int(np.flatnonzero(turn.prompt == lab.special.user)[0]) + 2
    return np.insert(turn.prompt, at, [lab.special.image] * 4)


BAD_FIRST_CHUNKS: dict[str, tuple[Callable[[Turn, Lab], InputChunk], type[AntiphonError]]] = {
    "unknown edge": (lambda turn, lab: InputChunk("codes", 0, {}), InvalidArgument),
    "image without a grid": (swap_id("image"), DataLoss),
    "video without a grid": (swap_id("video"), DataLoss),
    "grid without an image": (
        lambda turn, lab: InputChunk("prompt", 0, {"ids": turn.prompt, **shown((1, 2, 2))}),
        DataLoss,
    ),
    "grid of another size": (
        lambda turn, lab: InputChunk("prompt", 0, {"ids": picture(turn, lab), **shown((1, 2, 3))}),
        DataLoss,
    ),
    "grid of nothing": (
        lambda turn, lab: InputChunk("prompt", 0, {"ids": picture(turn, lab), **shown((0, 2, 2))}),
        DataLoss,
    ),
    "grid without a step": (
        lambda turn, lab: InputChunk(
            "prompt", 0, {"ids": picture(turn, lab), "grids": np.ones((1, 3), np.int32)}
        ),
        DataLoss,
    ),
    "more time steps than positions": (
        lambda turn, lab: InputChunk(
            "prompt", 0, {"ids": picture(turn, lab), **shown((4, 1, 1), step=13)}
        ),
        NotImplementedYet,
    ),
    "rows before ids": (lambda turn, lab: turn.prompt_chunks()[1], DataLoss),
    "no ids": (lambda turn, lab: InputChunk("prompt", 0, {}, segment_finished=True), DataLoss),
    "rows missing at the end": (
        lambda turn, lab: structs.replace(turn.prompt_chunks()[0], segment_finished=True),
        DataLoss,
    ),
    "empty prompt": (lambda turn, lab: InputChunk("prompt", 0, ids()), DataLoss),
    "prompt not from the start": (
        lambda turn, lab: structs.replace(turn.prompt_chunks()[0], position=1),
        DataLoss,
    ),
    "no assistant header": (
        lambda turn, lab: InputChunk("prompt", 0, {"ids": turn.prompt[:-3]}),
        FailedPrecondition,
    ),
    "audio in the answer": (
        lambda turn, lab: InputChunk(
            "prompt", 0, {"ids": np.append(turn.prompt, np.int32(lab.special.audio))}
        ),
        InvalidArgument,
    ),
    "id too large": (lambda turn, lab: InputChunk("tokens", 0, ids(1 << 20)), InvalidArgument),
    "negative id": (lambda turn, lab: InputChunk("tokens", 0, ids(-1)), InvalidArgument),
    "wrong dtype": (
        lambda turn, lab: InputChunk("tokens", 0, {"ids": np.array([1], np.int64)}),
        DataLoss,
    ),
    "wrong rank": (
        lambda turn, lab: InputChunk("tokens", 0, {"ids": np.array([[1]], np.int32)}),
        DataLoss,
    ),
    "gap in tokens": (lambda turn, lab: InputChunk("tokens", 1, ids(7)), DataLoss),
}


@pytest.mark.parametrize("case", BAD_FIRST_CHUNKS)
def test_chunk_is_refused_when_it_cannot_be_first(small: Lab, case: str) -> None:
    make, error = BAD_FIRST_CHUNKS[case]
    turn = make_turn(small)
    with pytest.raises(error):
        make_prompt(small).accept(make(turn, small))


def rows_chunk(turn: Turn, **changes: np.ndarray) -> InputChunk:
    return InputChunk(
        "prompt",
        len(turn.prompt),
        {"rows": turn.rows, "row_positions": turn.row_positions} | changes,
    )


BAD_ROWS: dict[str, Callable[[Turn], InputChunk]] = {
    "wrong width": lambda turn: rows_chunk(turn, rows=turn.rows[:, 1:]),
    "wrong rank": lambda turn: rows_chunk(turn, rows=turn.rows[0]),
    "no floats": lambda turn: rows_chunk(turn, rows=turn.rows.astype(np.int32)),
    "wrong positions": lambda turn: rows_chunk(turn, row_positions=turn.row_positions + 1),
    "too few positions": lambda turn: rows_chunk(turn, row_positions=turn.row_positions[1:]),
    "too many rows": lambda turn: rows_chunk(
        turn,
        rows=np.concatenate((turn.rows, turn.rows)),
        row_positions=np.concatenate((turn.row_positions, turn.row_positions)),
    ),
    "no positions": lambda turn: InputChunk("prompt", 0, {"rows": turn.rows}),
    "no rows": lambda turn: InputChunk("prompt", 0, {"row_positions": turn.row_positions}),
    "ids again": lambda turn: turn.prompt_chunks()[0],
    "ended too early": lambda turn: InputChunk("prompt", 0, {}, segment_finished=True),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_are_refused_when_they_are_not_the_prompts(small: Lab, case: str) -> None:
    turn, prompt = make_turn(small), make_prompt(small)
    prompt.accept(turn.prompt_chunks()[0])
    with pytest.raises(DataLoss):
        prompt.accept(BAD_ROWS[case](turn))


@pytest.mark.parametrize("edge", ["prompt", "tokens"])
def test_chunk_is_refused_when_its_edge_has_ended(small: Lab, edge: str) -> None:
    turn, prompt = make_turn(small), make_prompt(small)
    for chunk in turn.prompt_chunks() if edge == "prompt" else turn.token_chunks():
        prompt.accept(chunk)
    with pytest.raises(DataLoss, match="after the last"):
        prompt.accept(InputChunk(edge, 0, {}))
