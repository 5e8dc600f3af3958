from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2_5OmniConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.testing.conversations import conversation
from antiphon.testing.qwen2_5_omni.reference import Omni25Case, Omni25Reference
from services.qwen2_5_omni.token2wav.blocks import HALVES, BlockPlan, BlockSpan
from services.qwen2_5_omni.token2wav.decoder import Token2Wav
from services.qwen2_5_omni.token2wav.utterance import HELD_BLOCKS, Utterance
from services.qwen2_5_omni.token2wav.voices import read_voices

torch.set_num_threads(1)
TOLERANCE = 1e-5
BLOCK_CODES = 12


@dataclass(frozen=True)
class Speech:
    codes: torch.Tensor
    voice: str
    seed: int


def speech(count: int, voice: str = "Chelsie", seed: int = 3) -> Speech:
    generator = torch.Generator().manual_seed(count)
    return Speech(torch.randint(0, 66, (count,), generator=generator), voice, seed)


SPEECHES = (
    speech(1, "Ethan", 4),
    speech(11),
    speech(BLOCK_CODES, "Ethan"),
    speech(BLOCK_CODES + 1, seed=2**64 - 1),
    speech(60, seed=0),
    speech(150, "Ethan", 5),
)


class Rig:
    """The reference's module, and ours over the same weights."""

    def __init__(self, directory: Path) -> None:
        config: Any = Qwen2_5OmniConfig.from_pretrained(directory)
        self.module: Any = load_submodule(
            Qwen2_5OmniToken2WavModel,
            config.token2wav_config,
            "token2wav.",
            Weights(directory),
            dtype=torch.float32,
            device="cpu",
        )
        self.voices = read_voices(directory, condition_width=24, mel_width=80)
        self.ours = Token2Wav(self.module, self.voices)

    def truth(self, wanted: Speech) -> torch.Tensor:
        voice = self.voices[wanted.voice]
        torch.manual_seed(wanted.seed)
        made: torch.Tensor = self.module(
            wanted.codes[None], conditioning=voice.condition, reference_mel=voice.mel
        )
        return made.reshape(-1)

    def open(self, wanted: Speech, held_blocks: int = HELD_BLOCKS) -> Utterance:
        return self.ours.open(wanted.voice, seed=wanted.seed, held_blocks=held_blocks)

    def whole(self, *wanted: Speech) -> list[torch.Tensor]:
        utterances = [self.open(each) for each in wanted]
        for utterance, each in zip(utterances, wanted, strict=True):
            utterance.add(each.codes, finished=True)
        return self.ours.begin(utterances).run()

    def streamed(
        self, wanted: Speech, sizes: Sequence[int], held_blocks: int = HELD_BLOCKS
    ) -> torch.Tensor:
        """Codes come in pieces of these sizes, again and again."""
        utterance, made = self.open(wanted, held_blocks), []
        start, count = 0, len(wanted.codes)
        while start < count:
            for size in sizes:
                piece = wanted.codes[start : start + size]
                start += size
                utterance.add(piece, finished=start >= count)
                if utterance.ready:
                    made += self.ours.begin([utterance]).run()
                if start >= count:
                    break
        return torch.cat(made)


@pytest.fixture(scope="module")
def rig(omni25_directory: Path) -> Iterator[Rig]:
    with torch.inference_mode():
        yield Rig(omni25_directory)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    assert first.shape == second.shape
    return float((first - second).abs().max())


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
    (made,) = rig.whole(Speech(torch.from_numpy(truth.codes).long(), "Ethan", 7))
    assert difference(made, torch.from_numpy(truth.waveform)) < TOLERANCE


@pytest.mark.parametrize("sizes", [(1,), (12,), (5, 31), (47, 1), (149,)], ids=str)
def test_stream_equals_whole_when_blocks_are_held_back(rig: Rig, sizes: Sequence[int]) -> None:
    wanted = SPEECHES[-1]
    assert difference(rig.streamed(wanted, sizes), rig.whole(wanted)[0]) < TOLERANCE


def test_stream_is_nearer_to_whole_when_more_blocks_are_held_back(rig: Rig) -> None:
    wanted = SPEECHES[-1]
    (whole,) = rig.whole(wanted)
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
        assert difference(torch.cat(pieces), rig.whole(each)[0]) < TOLERANCE


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
        utterance = ours.open("Ethan", seed=0, held_blocks=3)
        utterance.add(SPEECHES[0].codes, finished=True)
        ours.begin([utterance]).run()
    finally:
        hook.remove()
    assert len(calls) == len(rig.voices)


@pytest.mark.parametrize(("looking", "ahead"), [(None, False), (0, False), (None, True)])
def test_rows_see_two_blocks_at_most_when_speech_is_long(looking: int | None, ahead: bool) -> None:
    plan = BlockPlan([BlockSpan(0, 100, last_frames=7)], 24, torch.device("cpu"))
    own = torch.zeros(HALVES * 100, 2, 24, 1, 4)
    seen, mask = plan.seen(own, 0, looking, ahead=ahead)
    blocks = 1 if looking is None and not ahead else 2
    assert seen.shape == (HALVES * 100, 2, 24 * blocks, 1, 4)
    assert mask is not None
    assert mask.shape == (HALVES * 100, 1, 1, 24 * blocks)
    counts = mask[:100].sum(-1).flatten().tolist()
    middle = 24 * blocks
    expected = [middle] * 99 + [7 + (24 if looking is not None else 0)]
    if looking is not None:
        expected[0] = 24
    if ahead:
        expected[98] = 24 + 7
    assert counts == expected
