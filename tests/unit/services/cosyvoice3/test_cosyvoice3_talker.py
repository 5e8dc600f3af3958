"""The engine of the talker, without a runtime around it."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from antiphon.pipelines.cosyvoice3 import CODES, FIRST, LEAST_CODES, SPEECH_IDS, VOICE
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.cosyvoice3.talker.load import WEIGHTS_FILE, load
from antiphon_services.cosyvoice3.talker.prompt import END, MOST_SILENT, SILENT_IDS, SOS, TASK
from antiphon_services.cosyvoice3.talker.tokenizer import END_OF_PROMPT
from antiphon_services.cosyvoice3.talker.voice_options import VoiceRequest
from antiphon_services.lm.repetition_aware import choose_aware
from antiphon_testkit.chi_square import chi_square_p
from antiphon_testkit.cosyvoice3.tiny_checkpoint import VOICES, build_tiny_cosyvoice
from antiphon_testkit.drive_engine import SegmentOutput, advance
from tests.equality.cosyvoice3.cosy_cases import (
    CROSS_LINGUAL,
    INSTRUCT,
    MODES,
    SFT,
    TEXTS,
    ZERO_SHOT,
)
from tests.unit.services.cosyvoice3.cosy_talker_lab import (
    SLOTS,
    Asked,
    TalkerLab,
    codes_of,
    message,
    options_of,
    voice_of,
)

SHORT = "a"
TWO_UTTERANCES = "The sound of the day was with you for one hour, and no people came. " * 7


@pytest.fixture(scope="module")
def lab(checkpoints: dict[str, Path]) -> TalkerLab:
    return TalkerLab(checkpoints["voices"])


@pytest.mark.parametrize("mode", MODES)
def test_voice_leaves_once_and_first(mode: str, lab: TalkerLab) -> None:
    """Code2wav has the recording's codes in every mode; the talker in one alone."""
    (output,) = lab.speak(Asked(SHORT, mode))
    voice = voice_of(output)
    assert voice["speaker"].shape == (1, 192)
    count = len(voice["prompt_codes"])
    assert (count > 0) == (mode != SFT)
    assert voice["prompt_mel"].shape == (2 * count, 80)
    prompt = lab.engine.front_end.prepare(
        message(SHORT).tensors,
        VoiceRequest("alto") if mode == SFT else _voice_request(mode),
    )
    (utterance,) = prompt.utterances
    assert int(utterance.speech.sum()) == 2 + (count if mode == ZERO_SHOT else 0)


def _voice_request(mode: str) -> VoiceRequest:
    options = options_of(mode)
    sound = options["reference_audio"]
    assert isinstance(sound, np.ndarray)
    text, instruction = (str(options.get(each, "")) for each in ("reference_text", "instruction"))
    return VoiceRequest("", sound, text, instruction)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", [SHORT, f"a{END_OF_PROMPT}b", TEXTS["tags"]])
def test_every_prompt_has_one_end_of_prompt_whatever_the_text_spells(
    mode: str, text: str, lab: TalkerLab
) -> None:
    request = VoiceRequest("alto") if mode == SFT else _voice_request(mode)
    for each in lab.engine.front_end.prepare(message(text).tensors, request).utterances:
        words = each.ids[~each.speech]
        assert int((words == lab.tokenizer.control[END_OF_PROMPT]).sum()) == 1


def test_codes_depend_on_seed_and_request_alone(lab: TalkerLab) -> None:
    asked = [Asked(TEXTS["english"], mode, seed) for seed, mode in enumerate(MODES)]
    assert len(asked) == SLOTS
    alone = [codes_of(*lab.speak(each)) for each in asked]
    assert [codes_of(each) for each in lab.speak(*asked)] == alone
    assert [codes_of(each) for each in lab.speak(*reversed(asked))] == alone[::-1]
    assert codes_of(*lab.speak(replace(asked[0], seed=99))) != alone[0]


def test_speech_that_ends_at_the_first_draw_has_no_codes(lab: TalkerLab) -> None:
    """The vendor's minimum length excludes another id, and its code then fails."""
    once = {"max_tokens": 1}
    asked = (Asked(TEXTS["chinese"], INSTRUCT, seed, once) for seed in range(500))
    silent = next(each for each in asked if not codes_of(*lab.speak(each)))
    (output,) = lab.speak(replace(silent, changes={}))
    assert voice_of(output)
    assert output.finish_reason(CODES) is FinishReason.STOP


def test_utterance_without_codes_is_passed_over(lab: TalkerLab) -> None:
    """The next one begins as any other does."""
    for seed in range(500):
        begun = Asked(TWO_UTTERANCES, INSTRUCT, seed, {"max_tokens": 2})
        if max(codes_of(*lab.speak(begun)), default=0) >= FIRST:
            break
    codes = codes_of(*lab.speak(replace(begun, changes={})))
    assert codes[0] >= FIRST
    assert codes[0] == codes_of(*lab.speak(begun))[0]


def test_codes_lie_in_their_range_and_first_ones_are_marked(lab: TalkerLab) -> None:
    for seed in range(3):
        codes = codes_of(*lab.speak(Asked(TWO_UTTERANCES, ZERO_SHOT, seed)))
        assert all(0 <= each < 2 * SPEECH_IDS for each in codes)
        assert codes[0] < FIRST
        assert any(each >= FIRST for each in codes)


def test_draws_are_bounded_over_all_utterances(lab: TalkerLab) -> None:
    asked = Asked(TWO_UTTERANCES, ZERO_SHOT, seed=5)
    whole = codes_of(*lab.speak(asked))
    second = next(at for at, each in enumerate(whole) if each >= FIRST)
    # Draws that end an utterance or are not heard are counted, too.
    cut = lab.speak(replace(asked, changes={"max_tokens": second + 3}))[0]
    codes = codes_of(cut)
    assert whole[: len(codes)] == codes
    assert len(codes) <= second + 3
    assert cut.finish_reason(CODES) is FinishReason.LENGTH


def test_silence_is_heard_for_a_while_alone(lab: TalkerLab) -> None:
    lab.engine.admit(key := SegmentKey("silent", 0), lab.settings(Asked(SHORT)))
    segment = lab.engine.segments[key]
    first, *others = sorted(SILENT_IDS)
    heard = [segment.taken(each) for each in (first, *others[:8], 5000, first)]
    assert heard == [first, *others[: MOST_SILENT - 1], *[None] * 4, 5000, first]
    assert segment.frames == MOST_SILENT + 2
    lab.engine.release(key)


def test_first_draws_have_the_vendors_distribution(
    lab: TalkerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The likeliest ids up to 0.8 of all probability, 25 at most, without `SOS`."""
    logits: list[torch.Tensor] = []
    model = lab.engine.model
    linear_ = torch.nn.functional.linear

    def watched(states: torch.Tensor, head: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        made = linear_(states, head, *rest)
        if head is model.head:
            logits.append(torch.tensor(made[0].tolist()))
        return made

    monkeypatch.setattr("antiphon_services.cosyvoice3.talker.talker.linear", watched)
    count = 600
    drawn: Counter[int] = Counter()
    for seed in range(count):
        output = lab.speak(Asked(SHORT, seed=seed, changes={"max_tokens": 1}))[0]
        codes = codes_of(output)
        drawn[codes[0] if codes else -1] += 1
    (first, *others) = logits[:count]
    assert all(torch.equal(first, each) for each in others)
    first = first.clone()
    first[SOS] = -math.inf
    weights = first.double().softmax(0)
    likely, order = weights.sort(descending=True, stable=True)
    kept_ = ((likely.cumsum(0) - likely) < 0.8) & (torch.arange(len(likely)) < 25)
    shares = (likely * kept_) / (likely * kept_).sum()
    expected: Counter[int] = Counter()
    for share, id_ in zip(shares[kept_].tolist(), order[kept_].tolist(), strict=True):
        expected[id_ if id_ < SPEECH_IDS else -1] += share
    assert set(drawn) <= set(expected)
    for id_, share in expected.items():
        spread = math.sqrt(count * share * (1 - share))
        assert abs(drawn[id_] - count * share) < 5 * spread + 1, id_


def test_the_id_that_the_vendor_excludes_is_not_drawn_early(checkpoints: dict[str, Path]) -> None:
    """Not even where it is the likeliest; it ends the utterance later, as every such id does."""
    own = TalkerLab(checkpoints["voices"])
    asked = Asked(TEXTS["english"], changes={"temperature": 0.0})
    first = codes_of(*own.speak(asked))[0]
    with torch.inference_mode():
        own.engine.model.head[SOS] = 2 * own.engine.model.head[first]
    (output,) = own.speak(asked)
    codes = codes_of(output)
    assert codes[0] == first
    own.engine.model.step = partial(_without_early, own.engine.model.step)  # type: ignore[method-assign]
    assert codes_of(*own.speak(asked)) == []


@pytest.mark.parametrize("id_", [END, TASK, SPEECH_IDS + 3, SPEECH_IDS + 199])
def test_every_id_that_is_no_code_ends_the_speech(id_: int, checkpoints: dict[str, Path]) -> None:
    own = TalkerLab(checkpoints["voices"])
    asked = Asked(TEXTS["english"], changes={"temperature": 0.0})
    first = codes_of(*own.speak(asked))[0]
    with torch.inference_mode():
        own.engine.model.head[id_] = 2 * own.engine.model.head[first]
    (output,) = own.speak(asked)
    assert codes_of(output) == []
    assert output.finish_reason(CODES) is FinishReason.STOP


@pytest.mark.parametrize("least", [0.5, 2.0])
def test_speech_is_as_long_as_the_request_asks_at_least(least: float, lab: TalkerLab) -> None:
    text = TEXTS["chinese"]
    count = math.ceil(least * len(lab.tokenizer.encode(text, field="messages")))
    for mode in MODES:
        request = VoiceRequest("alto") if mode == SFT else _voice_request(mode)
        prompt = lab.engine.front_end.prepare(
            message(text).tensors, replace(request, least_codes=least)
        )
        # Texts that are split lose some punctuation before.
        lost = 0 if mode in (SFT, CROSS_LINGUAL) else 2 * least
        assert prompt.utterances[0].least_draws == pytest.approx(count, abs=lost)
    shorter = 0
    for seed in range(20):
        asked = Asked(text, seed=seed)
        (longer,) = lab.speak(replace(asked, options={LEAST_CODES: least}))
        assert draws_of(longer) > count
        shorter += draws_of(*lab.speak(asked)) <= count
    assert shorter > 2


def test_no_minimum_length_is_the_default(lab: TalkerLab) -> None:
    for seed in range(5):
        asked = Asked(TEXTS["chinese"], seed=seed)
        none = replace(asked, options={LEAST_CODES: 0.0})
        assert codes_of(*lab.speak(none)) == codes_of(*lab.speak(asked))


def draws_of(output: SegmentOutput) -> int:
    """How many draws an answer took, the one that ended it included. Silent codes that do not leave
    are not counted."""
    return len(codes_of(output)) + (output.finish_reason(CODES) is FinishReason.STOP)


@pytest.mark.parametrize("influence", [1.0, 0.05])
def test_draws_have_the_vendors_distribution_at_every_step(
    influence: float,
    checkpoints: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each draw, where it lies in the vendor's distribution after the draws before it: that is
    uniform, and that of two draws in a row is uniform on a square. Where codes have little
    `influence` on later ones, many are repeated."""
    folder = shutil.copytree(checkpoints["voices"], tmp_path / "changed")
    tensors = torch.load(folder / WEIGHTS_FILE)
    tensors["speech_embedding.weight"] *= influence
    torch.save(tensors, folder / WEIGHTS_FILE)
    own_lab = TalkerLab(folder)
    drawn: list[tuple[torch.Tensor, int]] = []

    def watched(logits: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        made = choose_aware(logits, *rest)
        drawn.append((logits[0].clone(), int(made[0][0])))
        return made

    monkeypatch.setattr("antiphon_services.cosyvoice3.talker.talker.choose_aware", watched)
    jitter = np.random.default_rng(4)
    places, pairs, repeated = [], [], 0
    for seed in range(150):
        drawn.clear()
        changes = {"max_tokens": 12}
        own_lab.speak(Asked(TEXTS["english"], ZERO_SHOT, seed, changes))
        ids: list[int] = []
        own: list[float] = []
        for logits, id_ in drawn:
            shares, again = vendor_shares(logits, ids[-10:])
            assert shares[id_] > 0
            likelier = shares[(shares > shares[id_])].sum()
            own.append(float(likelier + shares[id_] * jitter.random()))
            repeated += again > 0.01
            ids.append(id_)
        places += own
        pairs += list(pairwise(own))
    assert repeated > (10 if influence == 1.0 else 100)
    bins = np.histogram(places, 25, (0, 1))[0]
    assert chi_square_p(bins, np.full(25, len(places) / 25)) > 1e-3
    square = np.histogram2d(*zip(*pairs, strict=True), 6, ((0, 1), (0, 1)))[0]
    assert chi_square_p(square.reshape(-1), np.full(36, len(pairs) / 36)) > 1e-3


def vendor_shares(scores: torch.Tensor, recent: list[int]) -> tuple[torch.Tensor, float]:
    """Probabilities float64 [V] of the vendor's `ras_sampling`, and that of its second draw."""
    weights = scores.double().softmax(0)
    likely, order = weights.sort(descending=True, stable=True)
    kept = ((likely.cumsum(0) - likely) < 0.8) & (torch.arange(len(likely)) < 25)
    shares = torch.zeros_like(weights)
    shares[order[kept]] = likely[kept] / likely[kept].sum()
    total = torch.zeros_like(weights)
    again = 0.0
    for id_ in set(recent):
        if shares[id_]:
            others = weights.clone()
            others[id_] = 0
            total += shares[id_] * others / others.sum()
            again += float(shares[id_])
            shares[id_] = 0
    return shares + total, again


def _without_early(step: Any, parts: Any, draws: Any) -> Any:
    late = [replace(each, text=replace(each.text, early=False)) for each in draws]
    return step(parts, late)


def test_slots_are_bounded_and_come_back_after_a_cancelled_segment(lab: TalkerLab) -> None:
    asked = Asked(TEXTS["english"])
    keys = [SegmentKey("crowd", number) for number in range(SLOTS)]
    for key in keys:
        lab.engine.admit(key, lab.settings(asked))
        lab.engine.accept(key, message(asked.text))
    late = SegmentKey("late", 0)
    lab.engine.admit(late, lab.settings(asked))
    with pytest.raises(ResourceExhausted, match="slots"):
        lab.engine.accept(late, message(asked.text))
    lab.engine.release(late)
    outputs = {key: SegmentOutput() for key in keys}
    advance(lab.engine, outputs, steps=3)
    assert all(each.emitted for each in outputs.values())
    for key in keys:
        lab.engine.release(key)
    expected = codes_of(*lab.speak(asked))
    assert [codes_of(each) for each in lab.speak(*[asked] * SLOTS)] == [expected] * SLOTS


def test_held_segment_goes_on_where_it_was(lab: TalkerLab) -> None:
    asked = Asked(TEXTS["english"])
    expected = codes_of(*lab.speak(asked))
    first, second = (SegmentKey("held", number) for number in range(2))
    outputs = {key: SegmentOutput() for key in (first, second)}
    for key in outputs:
        lab.engine.admit(key, lab.settings(asked))
        lab.engine.accept(key, message(asked.text))
    advance(lab.engine, outputs, steps=3)
    reached = lab.engine.segments[first].launched
    for _ in range(3):
        for event in lab.engine.step({first}):
            assert event.key == second
            outputs[second].emitted.append(event)  # type: ignore[arg-type]
    assert lab.engine.segments[first].launched == reached
    advance(lab.engine, outputs)
    assert [codes_of(each) for each in outputs.values()] == [expected] * 2


@pytest.mark.parametrize(
    ("changes", "field"), [({"repetition_penalty": 1.1}, "repetition_penalty")]
)
def test_sampling_that_the_model_replaces_is_refused(
    changes: dict[str, float], field: str, lab: TalkerLab
) -> None:
    settings = lab.settings(Asked(SHORT, changes=changes))
    with pytest.raises(InvalidArgument) as refused:
        lab.engine.admit(SegmentKey("refused", 0), settings)
    assert refused.value.field == field


@pytest.mark.parametrize("outputs", [{CODES}, {VOICE}, {"audio"}])
def test_other_outputs_are_refused(outputs: set[str], lab: TalkerLab) -> None:
    settings = replace(lab.settings(Asked(SHORT)), outputs=frozenset(outputs))
    with pytest.raises(InvalidArgument) as refused:
        lab.engine.admit(SegmentKey("refused", 0), settings)
    assert refused.value.field == "outputs"


def test_speech_ends_where_the_context_does(checkpoints: dict[str, Path]) -> None:
    narrow = TalkerLab(checkpoints["voices"], limit=96)
    wide = TalkerLab(checkpoints["voices"])
    for seed in range(100):
        asked = Asked(TEXTS["english"], seed=seed)
        (output,) = narrow.speak(asked)
        if output.finish_reason(CODES) is FinishReason.LENGTH:
            break
    codes = codes_of(output)
    assert output.finish_reason(CODES) is FinishReason.LENGTH
    assert codes_of(*wide.speak(asked))[: len(codes)] == codes
    assert output.completed is not None
    assert len(codes) <= 96 - output.completed.input_positions + 1


@pytest.fixture
def voices_file(tmp_path: Path) -> Path:
    build_tiny_cosyvoice(tmp_path / "own", VOICES)
    return tmp_path / "own" / "spk2info.pt"


@pytest.mark.parametrize(("at", "id_"), [(3, -1), (3, 10**6), (4, 0)])
def test_voice_whose_words_cannot_be_read_is_refused_at_the_start(
    at: int, id_: int, voices_file: Path
) -> None:
    """Ids out of range, or no end of the prompt among them."""
    voices = torch.load(voices_file, weights_only=True)
    voices["Clara"]["prompt_text"][0, at] = id_
    torch.save(voices, voices_file)
    with pytest.raises(FailedPrecondition, match=r"spk2info\.pt: .*clara: its prompt_text"):
        load(voices_file.parent, StageConfig(slots=1))
