import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
import torch

from antiphon.pipelines.qwen2_5_omni import TOKEN2WAV
from antiphon.values.sampling import stream_key
from antiphon_services.qwen2_5_omni.token2wav.blocks import (
    HALVES,
    BlockPlan,
    BlockSpan,
    BlockWindow,
)
from antiphon_services.qwen2_5_omni.token2wav.decoder import Token2Wav
from antiphon_testkit.conversations import conversation
from antiphon_testkit.qwen2_5_omni.reference import Omni25Case, Omni25Reference
from tests.unit.services.qwen2_5_omni.token2wav.token2wav_rig import (
    TOLERANCE,
    Rig,
    Speech,
    difference,
    speech,
)

torch.set_num_threads(1)
BLOCK_CODES = 12

SPEECHES = (
    speech(1, "Ethan", 4),
    speech(11),
    speech(BLOCK_CODES, "Ethan"),
    speech(BLOCK_CODES + 1, seed=2**64 - 1),
    speech(60, seed=0),
    speech(150, "Ethan", 5),
)


@pytest.fixture(params=[False, True], ids=["eager", "replayed"])
def replayed(request: pytest.FixtureRequest) -> bool:
    chosen: bool = request.param
    return chosen


@pytest.mark.parametrize("wanted", SPEECHES, ids=lambda each: f"{len(each.codes)} codes")
def test_whole_equals_the_reference_when_alone(rig: Rig, wanted: Speech) -> None:
    (made,) = rig.whole(wanted)
    assert made.dtype == torch.float32
    assert len(made) == 480 * len(wanted.codes)
    assert difference(made, rig.truth(wanted)) < TOLERANCE
    assert 0.05 < made.abs().max() < 1.0


def test_whole_equals_the_reference_when_in_company(rig: Rig) -> None:
    for made, wanted in zip(rig.whole(*SPEECHES), SPEECHES, strict=True):
        assert difference(made, rig.truth(wanted)) < TOLERANCE


def test_whole_equals_what_generate_says(rig: Rig, omni25_directory: Path) -> None:
    asked = conversation(("user", "Count the days"))
    truth = Omni25Reference(omni25_directory).run(Omni25Case(asked, "Ethan", seed=7))
    key = stream_key(7, TOKEN2WAV)
    (made,) = rig.whole(Speech(torch.from_numpy(truth.codes).long(), "Ethan", key))
    assert difference(made, torch.from_numpy(truth.waveform)) < TOLERANCE


def test_noise_differs_when_seeds_agree_in_their_low_bits(rig: Rig) -> None:
    made = rig.whole(*(speech(12, seed=3 + (1 << bit)) for bit in (32, 63, 64, 127)), speech(12))
    assert all(difference(first, other) > 1e-3 for first, other in combinations(made, 2))


@pytest.mark.parametrize("sizes", [(1,), (12,), (5, 31), (47, 1), (149,)], ids=str)
def test_stream_equals_whole_when_blocks_are_held_back(rig: Rig, sizes: Sequence[int]) -> None:
    wanted = SPEECHES[-1]
    assert difference(rig.streamed(wanted, sizes), rig.whole_once(wanted)) < TOLERANCE


def test_stream_is_nearer_to_whole_when_more_blocks_are_held_back(rig: Rig) -> None:
    wanted = SPEECHES[-1]
    whole = rig.whole_once(wanted)
    off = [difference(rig.streamed(wanted, (12,), held), whole) for held in range(4)]
    assert off[0] > 1e-3 > off[1] > off[2]
    assert max(off[2:]) < TOLERANCE


def test_stream_equals_whole_when_others_are_at_other_places(rig: Rig) -> None:
    """Eight utterances of different seeds; in every round some get codes, of some the last."""
    wanted = [speech(40 + 13 * index, ("Chelsie", "Ethan")[index % 2], index) for index in range(8)]
    utterances, sent = [rig.open(each) for each in wanted], [0] * 8
    made: list[list[torch.Tensor]] = [[] for _ in wanted]
    rounds = 0
    while any(at < len(each.codes) for at, each in zip(sent, wanted, strict=True)):
        for index, each in enumerate(wanted):
            size = 7 + 5 * ((index + rounds) % 4)
            if sent[index] < len(each.codes) and (index + rounds) % 3:
                piece = each.codes[sent[index] : sent[index] + size]
                sent[index] += size
                utterances[index].add(piece, finished=sent[index] >= len(each.codes))
        rounds += 1
        ready = [index for index, each in enumerate(utterances) if each.ready]
        if ready:
            samples = rig.ours.begin([utterances[index] for index in ready]).run()
            for index, piece in zip(ready, samples, strict=True):
                made[index].append(piece)
    assert not any(each.ready for each in utterances)
    for pieces, each in zip(made, wanted, strict=True):
        assert difference(torch.cat(pieces), rig.whole_once(each)) < TOLERANCE


def test_stream_ends_whole_when_the_end_brings_no_codes(rig: Rig) -> None:
    wanted = speech(2 * BLOCK_CODES)
    utterance = rig.open(wanted, held_blocks=0)
    utterance.add(wanted.codes, finished=False)
    (first,) = rig.ours.begin([utterance]).run()
    assert len(first) == (48 - 20) * 240
    utterance.add(wanted.codes[:0], finished=True)
    assert utterance.ready
    (rest,) = rig.ours.begin([utterance]).run()
    assert difference(torch.cat((first, rest)), rig.truth(wanted)) < TOLERANCE
    assert not utterance.ready


def test_utterance_is_not_ready_when_no_block_becomes_final(rig: Rig) -> None:
    wanted = speech(4 * BLOCK_CODES)
    utterance = rig.open(wanted, held_blocks=3)
    utterance.add(wanted.codes[:-1], finished=False)
    assert not utterance.ready
    utterance.add(wanted.codes[-1:], finished=False)
    assert utterance.ready


def test_noise_of_a_prefix_is_a_prefix_when_drawn_in_pieces() -> None:
    """What drawing block by block rests on, and so the reference's noise at any chunk size."""
    whole = torch.randn(300, 80, generator=torch.Generator().manual_seed(11))
    generator = torch.Generator().manual_seed(11)
    pieces = [torch.randn(rows, 80, generator=generator) for rows in (24, 48, 2, 226)]
    assert torch.equal(torch.cat(pieces), whole)
    torch.manual_seed(11)
    assert torch.equal(torch.randn([1, 300, 80])[0], whole)


def test_speaker_encoder_runs_once_for_each_voice(rig: Rig) -> None:
    calls: list[int] = []
    encoder = rig.module.code2wav_dit_model.input_embed.spk_encoder
    hook = encoder.register_forward_hook(lambda *_: calls.append(1))
    try:
        ours = Token2Wav(rig.module, rig.voices)
        utterance = ours.open("ethan", seed=0, held_blocks=3)
        utterance.add(SPEECHES[0].codes, finished=True)
        ours.begin([utterance]).run()
    finally:
        hook.remove()
    assert len(calls) == len(rig.voices)


@pytest.mark.parametrize(("looking", "ahead"), [(None, False), (0, False), (None, True)])
def test_rows_see_two_blocks_at_most_when_speech_is_long(looking: int | None, ahead: bool) -> None:
    plan = BlockPlan([BlockSpan(0, 100, last_frames=7)], 24, torch.device("cpu"))
    own = torch.zeros(HALVES * 100, 2, 24, 1, 4)
    seen, mask = plan.seen(own, 0, BlockWindow(looking, ahead))
    blocks = 1 if looking is None and not ahead else 2
    assert seen.shape == (HALVES * 100, 2, 24 * blocks, 1, 4)
    assert mask is not None
    assert mask.shape == (HALVES * 100, 1, 1, 24 * blocks)
    assert set(mask.unique().tolist()) == {0.0, -math.inf}
    counts = (mask[:100] == 0).sum(-1).flatten().tolist()
    middle = 24 * blocks
    expected = [middle] * 99 + [7 + (24 if looking is not None else 0)]
    if looking is not None:
        expected[0] = 24
    if ahead:
        expected[98] = 24 + 7
    assert counts == expected
