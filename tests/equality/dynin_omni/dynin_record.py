"""Records what Dynin-Omni's own code answers to `dynin_cases.py`, from messages to ids.

See the README in this folder. The vendor's code lays out the prompts and draws on a CPU with a tiny
checkpoint, once in float32 and once in float64. A case whose ids differ has narrow margins and is
rejected.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tempfile
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.diffusion.unmasking_plan import block_steps, cosine_steps
from antiphon_services.emova.unit_tokenizer import load_unit_tokenizer
from antiphon_services.magvit.image_sizes import image_weights
from antiphon_services.magvit.image_tokenizer import load_image_tokenizer
from antiphon_services.magvit.square_pixels import square_pixels
from antiphon_testkit.dynin_omni import tiny_checkpoint as tiny
from tests.equality.dynin_omni.dynin_cases import (
    CASES,
    CHANGED,
    CHAT,
    DRAWN,
    HEARD,
    READ,
    SEED,
    SHOWN,
    SPOKEN,
    TRANSCRIBED,
    DyninCase,
    picture,
    recording,
)
from tests.equality.masked_diffusion.diffusion_cases import IMAGE, SPEECH, TEXT
from tests.equality.masked_diffusion.diffusion_record import (
    AnswerPlace,
    KeyedDraws,
    vendor_model_of,
)

HERE = Path(__file__).parent
MOST_TEXT_IDS = 128
"""Prompts of speech and images are padded to so many ids of text, and one."""
SOURCE_SIDE = 21
KINDS = {
    CHAT: TEXT,
    SHOWN: TEXT,
    HEARD: TEXT,
    TRANSCRIBED: TEXT,
    READ: SPEECH,
    SPOKEN: SPEECH,
    DRAWN: IMAGE,
    CHANGED: IMAGE,
}
STUBBED = (
    "cv2",
    "wandb",
    "soundfile",
    "datasets",
    "omegaconf",
    "tqdm",
    "training.config_resolver",
    "training.utils",
    "models.modeling_emova_speech_tokenizer",
)
"""Modules that the vendor's scripts import and prompts don't need."""


def main() -> None:
    """Write `recorded.npz` and `recorded.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path)
    parser.add_argument("--cases", nargs="*", help="record only these again")
    given = parser.parse_args()
    vendor: Path = given.vendor
    prepare_vendor(vendor)
    arrays: dict[str, np.ndarray] = {}
    words: dict[str, str] = {}
    if given.cases:
        with np.load(HERE / "recorded.npz") as stored:
            arrays = dict(stored)
        words = json.loads((HERE / "recorded.json").read_text())
    for name, shape in tiny.PRESETS.items():
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "model"
            tiny.build_tiny_dynin(checkpoint, shape, SEED)
            script = VendorScripts(vendor, checkpoint)
            for case in [each for each in CASES if not given.cases or each.name in given.cases]:
                asked = script.asked(case)
                made = [script.answer(case, asked, each) for each in (torch.float64, torch.float32)]
                if made[0] != made[1]:
                    raise SystemExit(f"{name}/{case.name}: narrow margins: {made}")
                stem = f"{name}/{case.name}"
                arrays[f"{stem}/prompt"] = asked.shown_ids(script.mask)
                arrays[f"{stem}/ids"] = np.array(made[1], np.int32)
                words[stem] = script.words(made[1]) if KINDS[case.kind] == TEXT else ""
                print(stem, made[1], repr(words[stem]))
    np.savez_compressed(HERE / "recorded.npz", **arrays)
    (HERE / "recorded.json").write_text(json.dumps(words, indent=1, ensure_ascii=False) + "\n")


def prepare_vendor(vendor: Path) -> None:
    """Let the vendor's modules be imported, without what they do not need here."""
    sys.path.insert(0, str(vendor))
    package = types.ModuleType("models")
    package.__path__ = [str(vendor / "models")]
    for name in ("MAGVITv2", "MMadaModelLM", "DyninOmniModelLM"):
        setattr(package, name, MagicMock())
    sys.modules["models"] = package
    for name in STUBBED:
        sys.modules.setdefault(name, MagicMock())
    sys.modules["training.data"] = first_requests(vendor / "training" / "data.py")


def first_requests(file: Path) -> types.ModuleType:
    """A module with the first of each of the vendor's lists of requests, not a random one."""
    module = types.ModuleType("training.data")
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("S2T_INSTRUCTION", "T2S_INSTRUCTION"):
                setattr(module, name, ast.literal_eval(node.value)[:1])
    return module


class AskedIds:
    """The vendor's input: ids [1, n] with the answer's masks, what is attended to, and the same of
    the second sequence of an image."""

    def __init__(
        self,
        ids: Tensor,
        seen: Tensor | None = None,
        unguided: Tensor | None = None,
        unguided_seen: Tensor | None = None,
    ) -> None:
        self.ids, self.seen = ids, torch.ones_like(ids) if seen is None else seen.long()
        self.unguided, self.unguided_seen = unguided, unguided_seen

    def shown_ids(self, mask: int) -> np.ndarray:
        """Ids that are attended to, without the answer."""
        return self.ids[0][(self.seen[0] == 1) & (self.ids[0] != mask)].numpy().astype(np.int32)


class VendorScripts:
    """The vendor's prompts and generation for one checkpoint."""

    def __init__(self, vendor: Path, checkpoint: Path) -> None:
        import training.prompting_utils as prompting
        from transformers import AutoTokenizer

        ids = {each: at for each, at in self._ids(checkpoint).items() if each in tiny.TASK_MARKS}
        # The tiny tokenizer has fewer ids than the released one.
        missing = dict.fromkeys(prompting.reserved_token_mapping, ids["[iPAD]"])
        prompting.reserved_token_mapping = missing | ids
        self.tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
        script = (vendor / "validation" / "generate.py").read_text()
        found = re.search(r"tokenizer\.chat_template = (\".*\")\n", script)
        assert found is not None
        self.tokenizer.chat_template = ast.literal_eval(found[1])
        self.config = json.loads((checkpoint / "config.json").read_text())
        self.mask = self.config["mask_token_id"]
        self.prompting = prompting.UniversalPrompting(
            self.tokenizer,
            max_text_len=MOST_TEXT_IDS,
            ignore_id=-100,
            cond_dropout_prob=0.0,
            use_reserved_token=True,
        )
        self.tensors = load_file(checkpoint / "model.safetensors")
        here: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
        text = len(self.tokenizer)
        units = load_unit_tokenizer(Weights(checkpoint / tiny.SPEECH_TOKENIZER), **here)
        heard = units.units(recording()).astype(np.int64)
        self.units = torch.tensor(heard)[None] + text + tiny.IMAGE_IDS
        images = load_image_tokenizer(image_weights(checkpoint / tiny.IMAGE_TOKENIZER), **here)
        image = Image.open(io.BytesIO(picture())).convert("RGB")
        tokens = images.ids(square_pixels(image, SOURCE_SIDE * images.scale)).astype(np.int64)
        self.image = torch.tensor(tokens)[None] + text

    @staticmethod
    def _ids(checkpoint: Path) -> dict[str, int]:
        content = json.loads((checkpoint / "tokenizer.json").read_text())
        return {each["content"]: each["id"] for each in content["added_tokens"]}

    def words(self, ids: list[int]) -> str:
        """What the ids spell up to the first end."""
        ends = {self.tokenizer.eos_token_id, *self.tokenizer.convert_tokens_to_ids([tiny.TURN_END])}
        stop = next((at for at, each in enumerate(ids) if each in ends), len(ids))
        return str(self.tokenizer.decode(ids[:stop], skip_special_tokens=True))

    def asked(self, case: DyninCase) -> AskedIds:
        """The vendor's input for a case."""
        masks = torch.full((1, case.count), self.mask)
        match case.kind:
            case "chat":
                messages = [{"role": role, "content": text} for role, text in case.messages]
                text = self.tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=False
                )
                ids = self.tokenizer(text=text, return_tensors="pt")["input_ids"]
                return AskedIds(torch.cat((ids, masks), 1))
            case "shown":
                from validation import mmu_generate as script

                query = script._build_query_input_ids(self.prompting, case.text, "cpu")
                ids = script._concat_mmu_inputs("<|mmu|>", self.image, query, self.prompting, "cpu")
                return AskedIds(torch.cat((ids, masks), 1))
            case "heard" | "transcribed":
                return AskedIds(torch.cat((self._heard(case), masks), 1))
            case "read":
                from training.data import T2S_INSTRUCTION

                text = (
                    f"<|start_header_id|>user<|end_header_id|>\n{T2S_INSTRUCTION[0]}\n{case.text}"
                    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
                )
                return AskedIds(*self.prompting(([text], masks), "t2s_gen"))
            case "spoken":
                return AskedIds(*self.prompting((self.units, masks), "s2s_gen"))
            case "drawn":
                guided = self.prompting(([case.text], masks), "t2i_gen")
                return AskedIds(*guided, *self.prompting(([""], masks), "t2i_gen"))
            case _:
                labels = torch.full_like(masks, -100)
                both = [
                    self.prompting(([text], self.image, masks, labels), "i2i")[:2]
                    for text in (case.text, "")
                ]
                return AskedIds(*both[0], *both[1])

    def _heard(self, case: DyninCase) -> Tensor:
        """The input of a recording with the script's request, or the case's in its place."""
        from validation import speech as script

        if case.text:
            script.S2T_INSTRUCTION = [case.text]
        settings = MagicMock()
        settings.model.dynin_omni.codebook_size = tiny.IMAGE_IDS
        offset = len(self.tokenizer) + tiny.IMAGE_IDS
        item = {"audio_path": self.units - offset, "gt_text": "", "sample_id": ""}
        requests = script.S2T_INSTRUCTION
        made = script.s2t_eval_collate_fn(
            [item], None, self.tokenizer, self.prompting, settings, ""
        )
        script.S2T_INSTRUCTION = sys.modules["training.data"].S2T_INSTRUCTION
        assert requests
        ids: Tensor = made["input_ids"]
        return ids

    @torch.inference_mode()
    def answer(self, case: DyninCase, asked: AskedIds, dtype: torch.dtype) -> list[int]:
        """Ids of the answer: of the whole vocabulary for text, from 0 for the rest."""
        model = vendor_model_of(self.config, self.tensors, dtype)
        kind, ids = KINDS[case.kind], asked.ids.clone()
        start = int((ids[0] == self.mask).nonzero()[0, 0])
        place = AnswerPlace(kind, start, case.count, case.block, case.key, self.mask)
        if kind == IMAGE:
            plan = cosine_steps(case.count, case.steps, case.temperature)
        else:
            plan = block_steps(case.count, case.block, case.steps)
        KeyedDraws(model, place, plan).inject()
        return self.generate(model, case, asked)

    @torch.inference_mode()
    def generate(self, model: Any, case: DyninCase, asked: AskedIds) -> list[int]:
        """Ids that the model draws, as `answer` returns them."""
        kind, ids = KINDS[case.kind], asked.ids.clone()
        start = int((ids[0] == self.mask).nonzero()[0, 0])
        if kind == TEXT:
            made = model.mmu_generate(
                ids[:, :start],
                max_new_tokens=case.count,
                steps=case.steps,
                block_length=case.block,
                temperature=case.temperature,
                cfg_scale=case.guidance,
                mask_id=self.mask,
            )
            return list(made[0, start:].tolist())
        if kind == SPEECH:
            units = model.t2s_generate_mmu_like(
                ids,
                max_new_tokens=case.count,
                steps=case.steps,
                block_length=case.block,
                temperature=case.temperature,
                cfg_scale=case.guidance,
                mask_token_id=self.mask,
                attention_mask=asked.seen,
                uni_prompting=self.prompting,
                codebook_size=tiny.IMAGE_IDS,
                audio_codebook_size=tiny.SPEECH_IDS,
            )
            return list(units[0].tolist())
        generate = model.t2i_generate if case.kind == DRAWN else model.i2i_generate
        assert asked.unguided is not None
        assert asked.unguided_seen is not None
        tokens = generate(
            ids,
            uncond_input_ids=asked.unguided.clone() if case.guidance else None,
            attention_mask=asked.seen,
            uncond_attention_mask=asked.unguided_seen.long(),
            temperature=case.temperature,
            timesteps=case.steps,
            guidance_scale=case.guidance,
            seq_len=case.count,
            mask_token_id=self.mask,
            # The last position before the image, which differs between both sequences.
            resolution=start - 1,
            codebook_size=tiny.IMAGE_IDS,
            uni_prompting=self.prompting,
        )
        return list(tokens[0].tolist())


if __name__ == "__main__":
    main()
