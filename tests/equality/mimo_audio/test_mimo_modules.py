"""The modules of MiMo-Audio make what the vendor's code makes: ids, codes and whole audio."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon_services.lm.decoder import Decoder
from antiphon_testkit.mimo_audio.tiny_checkpoint import EMPTY, END_OF_SPEECH
from tests.equality.mimo_audio.mimo_cases import (
    AUDIO_STEP,
    CASES,
    CODES_CASES,
    DIALOGUE,
    MEL_STEP,
    SAMPLES_PER_FRAME,
    TTS,
    ZEROS,
    Case,
    clips,
    codes_of,
)
from tests.equality.mimo_audio.mimo_lab import MimoLab, Recorded, recorded_names

pytestmark = pytest.mark.equality

TOLERANCE = 1e-4
CASES_BY_NAME = {case.name: case for case in CASES}


def _positions(recorded: Recorded, stem: str, part: str, group: int) -> tuple[Tensor, Tensor]:
    ids = torch.tensor(recorded.arrays[f"{stem}/{part}text"].astype(np.int64))
    codes = torch.tensor(recorded.arrays[f"{stem}/{part}codes"].astype(np.int64))
    return ids, codes.view(len(ids), group, -1)


def _ends(lab: MimoLab, case: Case) -> set[int]:
    ends = {lab.ids["<|im_end|>"]}
    return ends | {lab.ids[END_OF_SPEECH]} if case.task in (TTS, DIALOGUE) else ends


@pytest.mark.parametrize("stem", recorded_names())
def test_answer_is_the_recorded_one(
    stem: str, mimo_labs: dict[str, MimoLab], recorded: Recorded
) -> None:
    preset, _, name = stem.partition("/")
    case, lab = CASES_BY_NAME[name], mimo_labs[preset]
    prompt = _positions(recorded, stem, "prompt-", lab.group)
    wanted_ids, wanted_codes = _positions(recorded, stem, "", lab.group)
    ids, codes = lab.answer(prompt, _ends(lab, case), case.most)
    assert ids.tolist() == wanted_ids.tolist()
    assert codes.tolist() == wanted_codes.tolist()


def test_some_answers_are_spoken_and_some_end_by_themselves(
    preset: str, recorded: Recorded
) -> None:
    """Else the recorded answers compare little."""
    rows = [row for name, row in recorded.rows.items() if name.startswith(f"{preset}/")]
    assert len(rows) > 0.8 * len(CASES)
    assert sum(row["spoken"] for row in rows) > 2 * len(CASES)
    ended = [row["positions"] < CASES_BY_NAME[row["case"].partition("/")[2]].most for row in rows]
    assert len(rows) / 4 < sum(ended) < len(rows)


def test_codes_drawn_are_never_the_empty_ones(
    lab: MimoLab, preset: str, recorded: Recorded
) -> None:
    for stem in recorded.rows:
        if not stem.startswith(f"{preset}/"):
            continue
        ids, codes = _positions(recorded, stem, "", lab.group)
        spoken = ids == lab.ids[EMPTY]
        assert (codes[spoken] < torch.tensor(lab.empty_codes)).all()
        assert (codes[~spoken] == torch.tensor(lab.empty_codes)).all()


def test_answer_goes_on_as_it_began_when_it_is_part_of_the_prompt(
    lab: MimoLab, preset: str, recorded: Recorded
) -> None:
    """What one prefill computes of groups is what their steps computed."""
    mine = {name: row for name, row in recorded.rows.items() if name.startswith(f"{preset}/")}
    stem = max(mine, key=lambda name: mine[name]["spoken"])
    case = CASES_BY_NAME[stem.partition("/")[2]]
    prompt = _positions(recorded, stem, "prompt-", lab.group)
    ids, codes = _positions(recorded, stem, "", lab.group)
    spoken = (ids == lab.ids[EMPTY]).nonzero()[:, 0].tolist()
    cut = spoken[len(spoken) // 2] + 1
    longer = torch.cat((prompt[0], ids[:cut])), torch.cat((prompt[1], codes[:cut]))
    rest_ids, rest_codes = lab.answer(longer, _ends(lab, case), case.most - cut)
    assert rest_ids.tolist() == ids[cut:].tolist()
    assert rest_codes.tolist() == codes[cut:].tolist()


def test_frames_of_a_group_see_each_other_and_no_other_group(lab: MimoLab) -> None:
    draw = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 128, (2, lab.group, len(lab.empty_codes)), generator=draw)
    ids = torch.full((2,), lab.ids[EMPTY])
    seen: list[Tensor] = []
    encoded = Decoder.forward

    def forward(decoder: Decoder, *given: Any) -> Tensor:
        states = encoded(decoder, *given)
        seen.append(states.view(2, lab.group, -1))
        return states

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "forward", forward)
        lab.encoder.rows(ids, codes)
        codes[0, -1] += 1
        lab.encoder.rows(ids, codes)
    before, after = seen
    assert (before[0, 0] - after[0, 0]).abs().max() > 1e-3
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("name", clips())
def test_recording_gives_what_is_recorded(
    name: str, preset: str, lab: MimoLab, recorded: Recorded
) -> None:
    samples = torch.tensor(clips()[name])
    stem = f"{preset}/clip-{name}"
    mel = lab.speech_encoder.mel(samples).flatten()[::MEL_STEP].numpy()
    # Of logarithms, which are -16 where there is nothing.
    np.testing.assert_allclose(mel, recorded.arrays[f"{stem}/mel"], rtol=0, atol=2e-3)
    codes = lab.speech_encoder.codes(samples).numpy()
    wanted, clear = recorded.arrays[f"{stem}/codes"], recorded.arrays[f"{stem}/clear"]
    assert len(codes) == len(wanted)
    assert clear.mean() > 0.95
    np.testing.assert_array_equal(codes[clear], wanted[clear])


@pytest.mark.parametrize("name", [*CODES_CASES, ZEROS])
def test_codes_give_the_recorded_audio(
    name: str, preset: str, lab: MimoLab, recorded: Recorded
) -> None:
    """The vendor's code decodes 1500 frames at a time."""
    codes = torch.tensor(codes_of(name).astype(np.int64))
    samples = torch.cat([lab.codec.samples(each) for each in codes.split(1500)])
    assert len(samples) == SAMPLES_PER_FRAME * len(codes)
    assert lab.codec.samples_per_frame == SAMPLES_PER_FRAME
    wanted = recorded.arrays[f"{preset}/codes-{name}/audio"]
    np.testing.assert_allclose(samples[::AUDIO_STEP].numpy(), wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("stem", recorded_names())
def test_answer_sounds_as_recorded(
    stem: str, mimo_labs: dict[str, MimoLab], recorded: Recorded
) -> None:
    """Spoken are the groups before the first end of speech, but for the last position."""
    lab = mimo_labs[stem.partition("/")[0]]
    ids, codes = _positions(recorded, stem, "", lab.group)
    words = ids[:-1].tolist()
    stop = words.index(lab.ids[END_OF_SPEECH]) if lab.ids[END_OF_SPEECH] in words else len(words)
    start = words.index(lab.ids["<|sostm|>"]) + 1 if lab.ids["<|sostm|>"] in words else 0
    spoken = codes[start:stop][ids[start:stop] == lab.ids[EMPTY]].flatten(0, 1)
    wanted = recorded.arrays[f"{stem}/audio"]
    assert recorded.rows[stem]["samples"] == SAMPLES_PER_FRAME * len(spoken)
    if len(spoken):
        samples = lab.codec.samples(spoken)[::AUDIO_STEP].numpy()
        np.testing.assert_allclose(samples, wanted, rtol=0, atol=TOLERANCE)
