"""Records what the vendor's code makes of `covo_cases.py` on tiny checkpoints.

Runs in an environment of its own: see the README in this folder.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from antiphon_services.flow.normal_draws import normal_draws
from antiphon_testkit.covo_audio.tiny_checkpoint import PRESETS, VOICE_FOLDER, build_tiny_covo
from antiphon_testkit.covo_audio.tiny_config import token2wav_config
from antiphon_testkit.covo_audio.tiny_shape import CovoShape
from tests.equality.covo_audio.covo_cases import (
    AUDIO_STEP,
    CASES,
    CODES_CASES,
    RATE_HZ,
    ROW_STEP,
    SEED,
    Case,
    clips,
    codes_of,
    key_of,
)

HERE = Path(__file__).parent
MIN_MARGIN = 1e-4
PLACEHOLDER = 151_666
"""The id of `<|cAUDIO|>` that the vendor's code knows by heart."""


class Float32Torch:
    """`torch`, for a module that converts features to bfloat16 whatever its weights are."""

    bfloat16 = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class Margins(transformers.LogitsProcessor):  # type: ignore[misc]
    """Notes the narrowest of the choices so far."""

    least = float("inf")

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores, which are final."""
        first, second = scores.topk(2)[0][0].tolist()
        self.least = min(self.least, first - second)
        return scores


def import_vendor(vendor: Path) -> Any:
    """The vendor's module of the language model, in float32, without a GPU."""
    sys.path.insert(0, str(vendor))
    # The attention of token2wav asks for a CUDA device when it is built.
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)  # type: ignore[assignment]
    from covoaudio import modeling_covo_audio

    modeling_covo_audio.torch = Float32Torch()
    return modeling_covo_audio


def load_model(vendor: Any, folder: Path) -> tuple[Any, Any]:
    """The language model and its tokenizer."""
    from safetensors.torch import load_file

    config = vendor.CovoAudioConfig.from_pretrained(folder)
    model = vendor.CovoAudioForCausalLM(config).float().eval()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    tokenizer = transformers.Qwen2TokenizerFast.from_pretrained(folder)
    found = tokenizer.convert_tokens_to_ids("<|cAUDIO|>")
    made = vendor.CovoAudioForCausalLM.prepare_inputs_for_generation
    code = made.__code__
    names = tuple(found if each == PLACEHOLDER else each for each in code.co_consts)
    model.prepare_inputs_for_generation = types.MethodType(
        types.FunctionType(code.replace(co_consts=names), made.__globals__), model
    )
    return model, tokenizer


def vendor_prompt(vendor: Any, tokenizer: Any, samples: np.ndarray, *, first: bool) -> Any:
    """Segments at 24 kHz and prompt ids of a turn."""
    vendor.torchaudio.load = lambda _: (torch.from_numpy(samples)[None], RATE_HZ)
    wavs, ids, _ = vendor.get_dialog_prompt("", tokenizer, "cpu", first_round=first)
    return wavs, ids


def prompt_of(vendor: Any, tokenizer: Any, case: Case) -> tuple[list[list[Tensor]], str]:
    """Segments of each recording, and the text of the prompt with all placeholders."""
    heard, recordings, text = clips(), [], ""
    for number, turn in enumerate(case.turns):
        samples = heard[turn.clip or "short"]
        wavs, ids = vendor_prompt(vendor, tokenizer, samples, first=not number)
        layout = tokenizer.decode(ids[0])
        begin, end = (
            layout.index("<|begofcAUDIO|>"),
            layout.index("<|im_end|>", layout.rindex("user")),
        )
        audio = layout[begin:end]
        if turn.clip:
            recordings.append(wavs)
        said = (audio if turn.clip else "") + turn.text
        text += layout[:begin] + said + layout[end:] + turn.answer
        text += "<|im_end|>" if turn.answer else ""
    if case.system:
        start = text.index("system\n") + len("system\n")
        text = text[:start] + case.system + text[text.index("<|im_end|>") :]
    return recordings, text


def answer(model: Any, vendor: Any, tokenizer: Any, case: Case, margins: Margins) -> dict[str, Any]:
    """Prompt ids, greedy ids and the rows of recordings."""
    recordings, text = prompt_of(vendor, tokenizer, case)
    ids = tokenizer(text, return_tensors="pt").input_ids
    made = [vendor.CovoAudioForCausalLM.audio_encoder(model, each, "cpu") for each in recordings]
    # Of several turns each has rows of its own: only those that have a place are kept.
    kept = [
        rows[:, : vendor.calc_seq_len(2 * -(-(sum(map(len, each)) // 240) // 2))]
        for rows, each in zip(made, recordings, strict=True)
    ]
    none = torch.zeros(1, 0, model.config.llm_config.hidden_size)
    rows = torch.cat([none, *kept], 1)
    model.audio_encoder = lambda *_: rows
    end = "<|im_end|>" if case.spoken else "<|endoftext|>"
    margins.least = float("inf")
    result = model.generate(
        input_ids=ids,
        wavs=[],
        attention_mask=torch.ones_like(ids),
        max_new_tokens=case.most,
        eos_token_id=tokenizer.convert_tokens_to_ids(end),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        return_dict_in_generate=True,
        repetition_penalty=1.05,
        logits_processor=transformers.LogitsProcessorList(
            [vendor.WindowedRepetitionPenaltyLogitsProcessor(penalty=1.05, window_size=8), margins]
        ),
        do_sample=False,
    )
    reply = result.sequences[0, ids.shape[1] :]
    words = tokenizer.decode(reply[reply < len(tokenizer)], skip_special_tokens=True)
    return {"prompt": ids[0], "ids": reply, "rows": rows[0], "words": words}


def load_token2wav(folder: Path, shape: CovoShape) -> Any:
    """The vendor's token2wav, without its tensors for training."""
    from token2wav.models import get_tokenizer_wrapper
    from token2wav.utils.util import JsonHParams, load_ckpt

    config = JsonHParams(**token2wav_config(shape))
    config.global_mean_var = str(folder / "token2wav/global_mean_var.npy")
    with contextlib.redirect_stdout(io.StringIO()):
        made = get_tokenizer_wrapper(config.type, config)
    stored = torch.load(folder / "token2wav/model.pt", weights_only=True)
    stored = stored.get("model", stored)
    names = {name.removeprefix("module.") for name in stored if "encoder." not in name}
    if differing := names ^ set(made.state_dict()):
        sys.exit(f"token2wav: not the vendor's tensors: {sorted(differing)[:5]}")
    return load_ckpt(made, str(folder / "token2wav/model.pt")).eval()


def record_codes(decoder: Any, folder: Path, stem: str, arrays: dict[str, np.ndarray]) -> None:
    """Audio of all codes, from noise that is antiphon's."""
    voice = folder / VOICE_FOLDER
    feature = {
        "prompt_token": torch.LongTensor(np.load(voice / "prompt_token.npy")),
        "prompt_latent": torch.FloatTensor(np.load(voice / "prompt_latent.npy")),
        "spkr_embed": torch.FloatTensor(np.load(voice / "speaker_embed.npy")),
        "sample_rate": RATE_HZ,
    }
    plain = torch.randn
    for name in CODES_CASES:

        def drawn(size: list[int], *, name: str = name, **_: Any) -> Tensor:
            numbers = normal_draws(key_of(name), 0, int(np.prod(size)))
            return torch.from_numpy(numbers.reshape(size))

        feature["target_token"] = torch.from_numpy(codes_of(name).astype(np.int64))[None]
        torch.randn = drawn  # type: ignore[assignment]
        try:
            made = decoder.inference(feature, s_steps=10, cfg_alpha=1.0, rescale_logits=False)
        finally:
            torch.randn = plain
        samples = made.flatten().numpy()
        arrays[f"{stem}/codes-{name}/audio"] = samples[::AUDIO_STEP]
        level = float(np.sqrt(np.mean(samples**2)))
        print(stem, name, len(samples), round(level, 4), float(np.abs(samples).max()), flush=True)


def main() -> None:
    """Write `recorded.npz` and `recorded.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path, help="a checkout of the vendor's repository")
    given = parser.parse_args()
    vendor = import_vendor(given.vendor)
    torch.set_num_threads(1)
    arrays: dict[str, np.ndarray] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        for stem, shape in PRESETS.items():
            folder = Path(name) / stem
            build_tiny_covo(folder, shape, SEED)
            record_codes(load_token2wav(folder, shape), folder, stem, arrays)
            model, tokenizer = load_model(vendor, folder)
            margins = Margins()
            for case in CASES:
                made = answer(model, vendor, tokenizer, case, margins)
                if margins.least < MIN_MARGIN:
                    # Another machine may choose otherwise.
                    print(f"{stem}/{case.name}: left out, margin {margins.least:.1e}", flush=True)
                    continue
                for kind, step in (("prompt", 1), ("ids", 1), ("rows", ROW_STEP)):
                    arrays[f"{stem}/{case.name}/{kind}"] = made[kind][::step].numpy()
                rows.append(
                    {
                        "case": f"{stem}/{case.name}",
                        "prompt": len(made["prompt"]),
                        "ids": len(made["ids"]),
                        "codes": int((made["ids"] >= len(tokenizer)).sum()),
                        "words": made["words"],
                        "margin": float(f"{margins.least:.2g}"),
                    }
                )
                print(rows[-1], made["ids"][-3:].tolist(), flush=True)
    np.savez_compressed(HERE / "recorded.npz", **arrays)  # type: ignore[arg-type]
    made_with = {"covo-audio": "710384c", "transformers": transformers.__version__}
    made_with |= {"torch": torch.__version__}
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    text = f'{{"made_with": {json.dumps(made_with)},\n "cases": [\n{lines}\n]}}\n'
    (HERE / "recorded.json").write_text(text)


if __name__ == "__main__":
    main()
