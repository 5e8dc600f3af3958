"""Greedy codes are those of the vendor's package, in both text modes and with every voice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Tokenizer

from antiphon.chunk import Tensors
from antiphon.errors import InvalidArgument, ResourceExhausted
from antiphon.pipelines.files import read_config
from antiphon.sampling import Sampling
from services.qwen3_tts.talker.module import load_talker_module
from services.qwen3_tts.talker.prompt import Clone, SpeechIds, SpeechRequest, make_prompt
from services.qwen3_tts.talker.talker import TtsSpeech, TtsTalker
from tests.equality.qwen3_tts.cases import REFERENCE_TEXT, Case, all_cases

CASES = {case.name: case for case in all_cases()}
SLOTS, LIMIT = 9, 256


class Lab:
    """One checkpoint's talker, asked as the vendor's package was."""

    def __init__(self, path: Path, recorded: Tensors) -> None:
        self.ids = SpeechIds.from_config(read_config(path))
        module = load_talker_module(path, torch.float32, "cpu")
        with torch.inference_mode():
            self.talker = TtsTalker(module, self.ids, context_limit=LIMIT, slots=SLOTS)
        self._tokenizer: Any = Qwen2Tokenizer.from_pretrained(path)
        self._recorded = recorded

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def request(self, case: Case) -> SpeechRequest:
        header = self._encode("<|im_start|>assistant\n")
        ids = self._encode(f"<|im_start|>assistant\n{case.text}<|im_end|>")
        turn = f"<|im_start|>user\n{case.instruction}<|im_end|>\n"
        clone = None
        if case.clone:
            clone = Clone(self._recorded["reference/vector"])
        if clone and case.clone == "codes":
            codes = self._recorded["reference/codes"]
            clone = replace(clone, frames=codes, text=self._encode(REFERENCE_TEXT))
        return SpeechRequest(
            role=header,
            text=ids[len(header) : -1],
            instruction=self._encode(turn) if case.instruction else (),
            voice=case.voice.lower(),
            language="" if case.language == "auto" else case.language.lower(),
            clone=clone,
            whole_text=case.whole_text,
        )

    def begin(self, case: Case) -> TtsSpeech:
        sampling = Sampling(0.0, 50, 1.0, 1.05, seed=0, max_tokens=case.max_new_tokens)
        return self.talker.begin(make_prompt(self.request(case), self.ids), sampling)

    def speak(self, speeches: Sequence[TtsSpeech]) -> list[list[list[int]]]:
        """The frames of each, drawn together as long as they go on."""
        frames: dict[int, list[list[int]]] = {each.slot: [] for each in speeches}
        going = list(speeches)
        while going:
            for speech, frame in zip(going, self.talker.draw(going), strict=True):
                if frame is not None:
                    frames[speech.slot].append(frame.tolist())
            going = [each for each in going if not each.over]
        for each in speeches:
            self.talker.end(each)
        return [frames[each.slot] for each in speeches]


@pytest.fixture(scope="module")
def labs(checkpoints: dict[str, Path], recorded: Tensors) -> dict[str, Lab]:
    return {kind: Lab(path, recorded) for kind, path in checkpoints.items()}


@pytest.mark.parametrize("name", CASES)
def test_codes_equal_the_recorded(name: str, labs: dict[str, Lab], recorded: Tensors) -> None:
    case = CASES[name]
    lab = labs[case.kind]
    (frames,) = lab.speak([lab.begin(case)])
    assert frames == recorded[f"{name}/codes"].tolist()


@pytest.mark.parametrize("kind", ["custom_voice", "base"])
def test_codes_are_those_of_each_alone_when_spoken_in_company(
    kind: str, labs: dict[str, Lab], recorded: Tensors
) -> None:
    cases = [case for case in CASES.values() if case.kind == kind and "trailing" in case.name]
    lab, cases = labs[kind], cases[:SLOTS]
    together = lab.speak([lab.begin(case) for case in cases])
    assert together == [recorded[f"{case.name}/codes"].tolist() for case in cases]


def test_sampled_codes_depend_on_the_seed_and_not_on_company(labs: dict[str, Lab]) -> None:
    lab = labs["base"]
    prompt = make_prompt(lab.request(CASES["codes-2-trailing"]), lab.ids)
    samplings = [Sampling(0.9, 50, 1.0, 1.05, seed=each, max_tokens=9) for each in range(8)]
    alone = [lab.speak([lab.talker.begin(prompt, each)])[0] for each in samplings]
    together = lab.speak([lab.talker.begin(prompt, each) for each in samplings])
    assert together == alone
    assert len({json.dumps(each) for each in alone}) > 4


def test_slot_is_refused_when_all_are_taken_and_free_when_one_ends(labs: dict[str, Lab]) -> None:
    lab, case = labs["base"], CASES["vector-0-whole"]
    speeches = [lab.begin(case) for _ in range(SLOTS)]
    with pytest.raises(ResourceExhausted, match="slots"):
        lab.begin(case)
    lab.talker.end(speeches.pop())
    speeches.append(lab.begin(case))
    assert len(lab.speak(speeches)) == SLOTS


@pytest.mark.parametrize(
    ("change", "field"),
    [({"voice": "nobody"}, "voice"), ({"language": "latin"}, "language"), ({"text": ()}, "text")],
)
def test_prompt_is_refused_when_a_name_is_unknown_or_text_missing(
    change: dict[str, Any], field: str, labs: dict[str, Lab]
) -> None:
    lab = labs["custom_voice"]
    request = replace(lab.request(CASES["voice-0-whole"]), **change)
    with pytest.raises(InvalidArgument) as refusal:
        make_prompt(request, lab.ids)
    assert refusal.value.field == field


def test_recorded_text_goes_through_a_dialect_only_where_none_is_asked_for(
    labs: dict[str, Lab],
) -> None:
    ids = labs["custom_voice"].ids
    dialect = ids.languages["hill_dialect"]
    assert ids.language("", "hill") == ids.language("chinese", "hill") == dialect
    assert ids.language("english", "hill") == ids.languages["english"]
    assert ids.language("", "alto") is None
