"""Records what Dynin-Omni's own code answers to `diffusion_cases.py`.

See the README in this folder. The vendor's code runs on a CPU with a tiny checkpoint, once in
float32 and once in float64. A case whose ids differ has narrow margins and is rejected. Its random
draws are replaced by antiphon's numbers, from which this script draws by itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from antiphon_services.diffusion.unmasking_plan import UnmaskingStep, block_steps, cosine_steps
from antiphon_services.lm.sampler import uniform_each
from antiphon_testkit import tiny_llada as tiny
from tests.equality.masked_diffusion.diffusion_cases import (
    CASES,
    COSINE_COUNTS,
    COSINE_STEPS,
    IMAGE,
    SEED,
    SPEECH,
    TEXT,
    DiffusionCase,
)

HERE = Path(__file__).parent
SMALLEST = 1e-20


def main() -> None:
    """Write `recorded.npz`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path)
    sys.path.insert(0, str(parser.parse_args().vendor))
    # The package's `__init__` imports EMOVA's.
    package = types.ModuleType("models")
    package.__path__ = [f"{sys.path[0]}/models"]
    sys.modules["models"] = package
    arrays: dict[str, np.ndarray] = {"cosine": cosine_masks()}
    for name, shape in tiny.SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            tiny.write_tiny_llada(Path(folder) / "model", shape, SEED)
            tensors = load_file(Path(folder) / "model" / "model.safetensors")
        for case in CASES:
            wide, narrow = (
                Answering(vendor_model(shape, tensors, dtype), case).run()
                for dtype in (torch.float64, torch.float32)
            )
            if wide != narrow:
                raise SystemExit(f"{name}/{case.name}: narrow margins: {wide} {narrow}")
            arrays[f"{name}/{case.name}"] = np.array(narrow, np.int32)
            print(name, case.name, narrow)
        arrays[f"{name}/rows"] = rows(vendor_model(shape, tensors, torch.float32))
    np.savez_compressed(HERE / "recorded.npz", **arrays)


def vendor_model(shape: tiny.LladaShape, tensors: dict[str, Tensor], dtype: torch.dtype) -> Any:
    """The vendor's model with these weights."""
    return vendor_model_of(tiny.llada_config(shape), tensors, dtype)


def vendor_model_of(
    fields: Mapping[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype
) -> Any:
    """The vendor's model with the fields of a `config.json` and these weights."""
    from models.configuration_llada import ModelConfig
    from models.modeling_dynin_omni import DyninOmniConfig, DyninOmniModelLM

    known = ModelConfig().__dict__ | dict(fields)
    known.pop("model_type")
    config = DyninOmniConfig(**known, use_cache=False)
    config.use_cache = False
    model = DyninOmniModelLM(config, init_params=False).to(dtype).eval()
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in tensors.items()})
    return model


def rows(model: Any) -> np.ndarray:
    """Logits of two padded sequences, where they are not padding."""
    ids = torch.tensor([[5, 6, 7, 8, 9], [15, 16, 17, 0, 0]])
    seen = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.inference_mode():
        bias = (seen[:, :, None] & seen[:, None, :]).bool().unsqueeze(1)
        logits = model(ids, attention_bias=bias).logits
    return np.concatenate((logits[0].numpy(), logits[1, :3].numpy()))


def cosine_masks() -> np.ndarray:
    """How many of each of `COSINE_COUNTS` are masked after each step but the last, one row for
    each of `COSINE_STEPS` and count, padded with zeros."""
    from models.sampling import cosine_schedule

    masks = np.zeros((len(COSINE_STEPS), len(COSINE_COUNTS), max(COSINE_STEPS)), np.int32)
    for at, steps in enumerate(COSINE_STEPS):
        for place, count in enumerate(COSINE_COUNTS):
            unknown = torch.tensor([[count]])
            for step in range(steps - 1):
                share = cosine_schedule(torch.tensor(1.0 * (step + 1) / steps))
                length = (count * share).floor().unsqueeze(0)
                unknown = torch.max(torch.tensor([1]), torch.min(unknown - 1, length))
                masks[at, place, step] = int(unknown)
    return masks


@dataclass(frozen=True, slots=True)
class AnswerPlace:
    """An answer of `count` positions from `start` on in the vendor's sequences, whose draws have
    this `key`. Positions of a `block` are drawn in one call."""

    kind: str
    start: int
    count: int
    block: int
    key: int
    mask: int


class KeyedDraws:
    """Replaces the vendor's draws. The step is found from the ids of the model's input."""

    def __init__(self, model: Any, place: AnswerPlace, plan: Sequence[UnmaskingStep]) -> None:
        self.place = place
        self.step = 0
        self.fixed_before = np.cumsum([0, *(each.fixed for each in plan)])[:-1]
        forward = model.forward

        def watched(ids: Tensor, **given: Any) -> Any:
            row = ids[0, place.start : place.start + place.count]
            fixed = int((row != place.mask).sum())
            self.step = int(np.searchsorted(self.fixed_before, fixed, side="right")) - 1
            return forward(ids, **given)

        model.forward = watched

    def inject(self) -> None:
        """Put the draws into the vendor's modules and torch."""
        import models.modeling_dynin_omni as code
        import models.sampling as sampling

        code.add_gumbel_noise, sampling.gumbel_noise = self.noisy, self.gumbel
        torch.multinomial = self.multinomial

    def numbers(self) -> np.ndarray:
        """Those of the step: a draw for each position, then a Gumbel number for each."""
        return uniform_each([self.place.key], [self.step], 2 * self.place.count)[0]

    def drawn(self, probabilities: Tensor, numbers: np.ndarray) -> Tensor:
        """Ids [n] from [n, ids]."""
        sums = probabilities.double().cumsum(-1)
        return torch.searchsorted(sums, torch.tensor(numbers)[:, None] * sums[:, -1:], right=True)

    def multinomial(self, probabilities: Tensor, *_: Any, **__: Any) -> Tensor:
        """`torch.multinomial` of the positions of a block, or of the image."""
        start = 0
        if self.place.kind == SPEECH:
            start = int(self.fixed_before[self.step]) // self.place.block * self.place.block
        return self.drawn(probabilities, self.numbers()[start : start + len(probabilities)])

    def noisy(self, logits: Tensor, temperature: float) -> Tensor:
        """`add_gumbel_noise`: its highest value is the drawn id."""
        if temperature == 0:
            return logits
        start, stop = self.place.start, self.place.start + self.place.count
        answer = logits[0, start:stop].double() / temperature
        ids = self.drawn(answer.softmax(-1), self.numbers()[: self.place.count])
        made = logits.clone()
        made[0, start:stop] = torch.zeros_like(logits[0, start:stop]).scatter_(1, ids, 1.0)
        return made

    def gumbel(self, like: Tensor, generator: Any = None) -> Tensor:
        """`gumbel_noise` of the positions of the image."""
        drawn = torch.tensor(self.numbers()[self.place.count :])
        inner = -drawn.clamp(min=SMALLEST).log()
        return (-inner.clamp(min=SMALLEST).log())[None]


class Answering:
    """The vendor's generation with keyed draws."""

    def __init__(self, model: Any, case: DiffusionCase) -> None:
        self.model, self.case = model, case
        self.ids = torch.tensor([case.prompt_ids + [tiny.MASK] * case.count])
        if case.kind == IMAGE:
            self.ids = torch.cat((self.ids, torch.tensor([[tiny.END_OF_IMAGE]])), 1)
            plan: tuple[UnmaskingStep, ...] = cosine_steps(case.count, case.steps, 1.0)
        else:
            plan = block_steps(case.count, case.block, case.steps)
        place = AnswerPlace(case.kind, case.prompt, case.count, case.block, case.key, tiny.MASK)
        self.draws = KeyedDraws(model, place, plan)

    @torch.inference_mode()
    def run(self) -> list[int]:
        """Ids of the answer: of the whole vocabulary for text, from 0 for the rest."""
        self.draws.inject()
        case, answer = self.case, slice(self.case.prompt, self.case.prompt + self.case.count)
        special = {"<|eoa|>": torch.tensor([tiny.END_OF_AUDIO])}
        prompting = types.SimpleNamespace(text_tokenizer=TextIds(), sptids_dict=special)
        if case.kind == TEXT:
            made = self.model.mmu_generate(
                self.ids[:, : case.prompt],
                max_new_tokens=case.count,
                steps=case.steps,
                block_length=case.block,
                temperature=case.temperature,
                cfg_scale=case.guidance,
                mask_id=tiny.MASK,
            )
            return list(made[0, answer].tolist())
        if case.kind == SPEECH:
            units = self.model.t2s_generate_mmu_like(
                self.ids,
                max_new_tokens=case.count,
                steps=case.steps,
                block_length=case.block,
                temperature=case.temperature,
                cfg_scale=case.guidance,
                mask_token_id=tiny.MASK,
                uni_prompting=prompting,
                codebook_size=tiny.IMAGE_IDS,
                audio_codebook_size=tiny.SPEECH_IDS,
            )
            return list(units[0].tolist())
        seen = torch.ones_like(self.ids)
        unguided = self.ids.clone()
        unguided[0, : case.prompt] = torch.tensor(case.unguided_ids)
        tokens = self.model.t2i_generate(
            self.ids,
            uncond_input_ids=unguided if case.guidance else None,
            attention_mask=seen,
            uncond_attention_mask=seen,
            temperature=case.temperature,
            timesteps=case.steps,
            guidance_scale=case.guidance,
            seq_len=case.count,
            mask_token_id=tiny.MASK,
            resolution=case.prompt - 1,
            codebook_size=tiny.IMAGE_IDS,
            uni_prompting=prompting,
        )
        return list(tokens[0].tolist())


class TextIds:
    """What the vendor's code reads of a tokenizer."""

    eos_token_id = tiny.END_OF_TEXT

    def __len__(self) -> int:
        return tiny.TEXT_IDS


if __name__ == "__main__":
    main()
