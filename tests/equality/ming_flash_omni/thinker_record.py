"""Records the answers of the vendor's thinker to `flash_cases.py` on tiny checkpoints.

Runs in an environment of its own: see the README in this folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from transformers.cache_utils import Cache, StaticCache

from antiphon_testkit.ming_flash_omni.flash_checkpoint import PRESETS, build_tiny_flash
from tests.equality.ming_flash_omni.flash_cases import (
    AUDIO,
    CASES,
    IMAGE,
    RATE_HZ,
    ROW_STEP,
    SEED,
    TEXT,
    Case,
    images,
    recordings,
)
from tests.equality.recording import write_recorded

HERE = Path(__file__).parent
MIN_MARGIN = 1e-4
STUBBED = (
    *("torchvision", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"),
    "bailingmm_utils_video",
)
"""Modules that the vendor's code imports, but doesn't need for these cases."""


class Margins(transformers.LogitsProcessor):  # type: ignore[misc]
    """Notes the narrowest of the choices so far."""

    least = float("inf")

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores, which are final."""
        first, second = scores.topk(2)[0][0].tolist()
        self.least = min(self.least, first - second)
        return scores


def import_vendor(vendor: Path) -> Any:
    """The vendor's modules, without packages for a GPU, videos and image generation."""
    warnings.filterwarnings("ignore")
    sys.path.insert(0, str(vendor))
    for name in STUBBED:
        stub: Any = types.ModuleType(name)
        sys.modules[name] = stub
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, stub)
    sys.modules["bailingmm_utils_video"].__dict__.update(v1_fetch_video=None, VideoInput=None)
    # The plain attention asks for a length that it doesn't use, by a method that is gone, and its
    # mask needs a class that isn't imported.
    Cache.get_usable_length = lambda *_: 0  # type: ignore[attr-defined]
    import audio_processing_bailingmm2
    import image_processing_bailingmm2
    import modeling_bailing_moe_v2
    import modeling_bailingmm2
    import processing_bailingmm2

    modeling_bailing_moe_v2.StaticCache = StaticCache
    return types.SimpleNamespace(
        audio=audio_processing_bailingmm2,
        image=image_processing_bailingmm2,
        model=modeling_bailingmm2,
        processor=processing_bailingmm2,
    )


def load_model(vendor: Any, folder: Path) -> Any:
    """The thinker, in float32 with plain attention."""
    content = json.loads((folder / "config.json").read_text())
    content["llm_config"]["_attn_implementation"] = "eager"
    config = vendor.model.BailingMM2Config(**content)
    model = vendor.model.BailingMM2NativeForConditionalGeneration(config).float().eval()
    # The vision tower always asks for flash attention.
    for block in model.vision.blocks:
        setattr(block.attn.config, "_attn_implementation", "eager")  # noqa: B010
    stored: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        stored |= load_file(file)
    model.load_state_dict(stored, strict=True)
    whole = model.extract_audio_feature

    def each_alone(feats: Tensor, lengths: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        parts = torch.split(feats, lengths[0].tolist(), dim=1)
        made = [whole(each, torch.tensor([[each.shape[1]]])) for each in parts]
        return torch.cat([rows for rows, _ in made], 1), torch.cat([n for _, n in made], 1)

    model.extract_audio_feature = each_alone
    return model


def load_processor(vendor: Any, folder: Path) -> Any:
    """The vendor's processor."""
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    fields = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        model_input_names=["input_ids", "attention_mask"],
        **{name: fields[name] for name in ("bos_token", "eos_token", "cls_token", "pad_token")},
    )
    tokenizer.chat_template = ""
    image_names = ("image_mean", "image_std", "max_pixels", "merge_size", "min_pixels")
    image_names += ("patch_size", "temporal_patch_size")
    seen = vendor.image.BailingMM2ImageProcessor(**{name: settings[name] for name in image_names})
    frontend = settings["whisper_frontend_args"]
    heard = vendor.audio.BailingMM2AudioProcessor(whisper_frontend_args=frontend)
    return vendor.processor.BailingMM2Processor(seen, heard, tokenizer)


def messages_of(case: Case) -> list[dict[str, Any]]:
    """The conversation in the vendor's form."""
    heard, seen = recordings(), images()
    made: list[dict[str, Any]] = []
    for turn in case.turns:
        parts: list[dict[str, Any]] = []
        for kind, name in turn.parts:
            if kind == TEXT:
                parts.append({"type": "text", "text": name})
            elif kind == AUDIO:
                # The vendor counts the recordings of a part, unless it is a path.
                wave = torch.from_numpy(heard[name])
                given = [{"audio": wave, "sample_rate": RATE_HZ}]
                parts.append({"type": "audio", "audio": given})
            else:
                parts.append({"type": "image", "image": Image.fromarray(seen[name])})
        made.append({"role": "HUMAN", "content": parts})
        if turn.answer:
            content = [{"type": "text", "text": turn.answer}]
            made.append({"role": "ASSISTANT", "content": content})
    return made


def answer(model: Any, processor: Any, case: Case, margins: Margins) -> dict[str, Any]:
    """Prompt ids, greedy ids, rotary positions, and rows of recordings and images."""
    messages = messages_of(case)
    text = processor.apply_chat_template(messages, sys_prompt_exp=case.system or None)
    seen, _, heard = processor.process_vision_info(messages)
    inputs = processor(
        text=[text],
        images=seen,
        audios=heard,
        return_tensors="pt",
        audio_kwargs={"use_whisper_encoder": True},
    )
    margins.least = float("inf")
    made: dict[str, Any] = {"prompt": inputs["input_ids"][0]}
    # The vendor's script drops these as well: they belong to image generation.
    given = {name: each for name, each in inputs.items() if not name.startswith("image_gen")}
    result = model.generate(
        **given,
        max_new_tokens=case.most,
        use_cache=True,
        eos_token_id=processor.gen_terminator,
        num_logits_to_keep=1,
        do_sample=False,
        logits_processor=transformers.LogitsProcessorList([margins]),
    )
    made["ids"] = result[0, inputs["input_ids"].shape[1] :]
    if case.named(AUDIO):
        rows, _ = model.extract_audio_feature(inputs["audio_feats"], inputs["audio_feats_lengths"])
        made["heard"] = rows[0]
    if case.named(IMAGE):
        grid = inputs["image_grid_thw"]
        made["seen"] = model.extract_image_feature(inputs["pixel_values"], grid_thw=grid)
    words = processor.tokenizer.decode(made["ids"], skip_special_tokens=True)
    return made | {"words": words}


def main() -> None:
    """Write `recorded.npz` and `recorded.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path, help="a checkout of the vendor's repository")
    vendor = import_vendor(parser.parse_args().vendor)
    torch.set_num_threads(1)
    arrays: dict[str, np.ndarray] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        for stem, shape in PRESETS.items():
            folder = Path(name) / stem
            build_tiny_flash(folder, shape, SEED)
            model, processor = load_model(vendor, folder), load_processor(vendor, folder)
            margins = Margins()
            for case in CASES:
                made = answer(model, processor, case, margins)
                for kind, step in (
                    ("prompt", 1),
                    ("ids", 1),
                    ("heard", ROW_STEP),
                    ("seen", ROW_STEP),
                ):
                    if kind in made:
                        arrays[f"{stem}/{case.name}/{kind}"] = made[kind][::step].numpy()
                rows.append(
                    {
                        "case": f"{stem}/{case.name}",
                        "prompt": len(made["prompt"]),
                        "ids": len(made["ids"]),
                        "words": made["words"],
                        "margin": float(f"{margins.least:.2g}"),
                    }
                )
                print(rows[-1], flush=True)
                if margins.least < MIN_MARGIN:
                    sys.exit("another machine may choose otherwise: replace this case")
    write_recorded(HERE, arrays, rows, {"ming": "2a0c02a"})


if __name__ == "__main__":
    main()
