"""Records what the vendor's code answers to `mimo_cases.py`, greedily, on a tiny checkpoint.

Runs in an environment of its own: see the README in this folder.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import io
import json
import random
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from antiphon_testkit.mimo_audio.tiny_checkpoint import (
    AUDIO_TOKENIZER,
    LANGUAGE_MODEL,
    PRESETS,
    build_tiny_mimo,
)
from tests.equality.mimo_audio.mimo_cases import (
    ASR,
    AUDIO_STEP,
    CASES,
    CHANNELS,
    CODES_CASES,
    DIALOGUE,
    GROUP,
    MEL_STEP,
    PROMPTED,
    SEED,
    STREAMED,
    STREAMED_CHUNK,
    TEXT_DIALOGUE,
    TRANSCRIBE,
    TTS,
    UNDERSTANDING,
    ZEROS,
    Case,
    clips,
    codes_of,
)

HERE = Path(__file__).parent
MIN_MARGIN = 1e-4
CLEAR_MARGIN = 1e-3
"""Of the squared distances to two entries of a codebook."""
SEGMENT = 1500
SAMPLERS = {
    TTS: "tts",
    ASR: "asr",
    UNDERSTANDING: "audio_understanding",
    DIALOGUE: "spoken_dialogue",
    TEXT_DIALOGUE: "text_chat",
}


def attend_by_lengths(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    _key_starts: Tensor,
    _longest: Tensor,
    _longest_key: Tensor,
    *,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
) -> Tensor:
    """`flash_attn_varlen_func` of packed rows [n, heads, head_dim], as its documentation has it."""
    left, right = window_size
    right = 0 if causal else right
    mixed = torch.empty_like(query)
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        at = torch.arange(stop - start)
        ahead = at[None] - at[:, None]
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if left >= 0:
            seen &= ahead >= -left
        if right >= 0:
            seen &= ahead <= right
        parts = [each[start:stop].transpose(0, 1)[None] for each in (query, key, value)]
        mixed[start:stop] = scaled_dot_product_attention(*parts, attn_mask=seen)[0].transpose(0, 1)
    return mixed


class Float32Torch:
    """`torch`, for a module that asks for zeros in bfloat16 whatever its weights are."""

    def __getattr__(self, name: str) -> Any:
        return self.zeros if name == "zeros" else getattr(torch, name)

    @staticmethod
    def zeros(*size: Any, **how: Any) -> Tensor:
        """As `torch.zeros`, but in float32 instead of bfloat16."""
        if how.get("dtype") is torch.bfloat16:
            how["dtype"] = torch.float32
        return torch.zeros(*size, **how)


class Margins:
    """The narrowest of the choices so far."""

    def __init__(self) -> None:
        self.least = float("inf")

    def seen(self, scores: Tensor) -> None:
        """Note the distance of the two highest scores [1, n], of which others may be excluded."""
        first, second = scores.topk(2)[0][0].tolist()
        self.least = min(self.least, first - second)


def import_vendor(vendor: Path, torchaudio: Path) -> Any:
    """The vendor's module `mimo_audio`, in float32, with attention that a CPU has."""
    sys.path[:0] = [str(vendor), str(torchaudio)]
    flash = types.ModuleType("flash_attn")
    flash.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    flash.__dict__.update(flash_attn_varlen_func=attend_by_lengths, __version__="2.7.4")
    sys.modules["flash_attn"] = flash
    from src.mimo_audio import mimo_audio, modeling_mimo_audio

    modeling_mimo_audio.torch = Float32Torch()
    made = modeling_mimo_audio.MiMoAudioForCausalLM.from_pretrained

    def from_pretrained(path: str, *, args: Any, **_how: Any) -> Any:
        model, told = made(path, args=args, torch_dtype=torch.float32, output_loading_info=True)
        require_all_loaded(told)
        return model

    mimo_audio.MiMoAudioForCausalLM = types.SimpleNamespace(from_pretrained=from_pretrained)
    codec = mimo_audio.MiMoAudioTokenizer
    codec.bfloat16 = lambda self: self

    def from_codec(path: str) -> Any:
        model, told = codec.from_pretrained(path, output_loading_info=True)
        require_all_loaded(told)
        return model

    mimo_audio.MiMoAudioTokenizer = types.SimpleNamespace(from_pretrained=from_codec)
    random.choice = lambda given: TRANSCRIBE if TRANSCRIBE in given else given[0]  # type: ignore[assignment]
    return mimo_audio


def require_all_loaded(told: dict[str, Any]) -> None:
    """Exit unless the model has every tensor of the checkpoint, and no other."""
    differing = {kind: names for kind, names in told.items() if names}
    if differing:
        sys.exit(f"the vendor's code does not load all: {differing}")


def make_greedy(speaker: Any, module: Any, margins: Margins) -> None:
    """Let both samplers of every task take the likeliest, and note the margins."""

    class Greedy(module.MiMoSampler):  # type: ignore[misc]
        def sample(self, scores: Tensor, removed_tokens: list[int] | None = None) -> Tensor:
            excluded = scores.clone()
            excluded[:, removed_tokens or []] = -float("inf")
            margins.seen(excluded)
            drawn: Tensor = super().sample(scores, removed_tokens)
            return drawn

    greedy = Greedy(do_sample=False, temperature=1.0, top_p=1.0)
    for each in speaker.task_sampler_configs.values():
        each.update({"global": greedy, "local": greedy})


def watch_codebooks() -> list[Tensor]:
    """The margins [frames] of each codebook of the vendor's quantizer, as they are asked for."""
    from src.mimo_audio_tokenizer.quantization import EuclideanCodebook

    margins: list[Tensor] = []

    def quantize(self: Any, rows: Tensor) -> Tensor:
        table = self.embed.t()
        near = -(rows.pow(2).sum(1, True) - 2 * rows @ table + table.pow(2).sum(0, True))
        first, second = near.topk(2)[0].unbind(1)
        margins.append(first - second)
        return near.max(dim=-1).indices

    EuclideanCodebook.quantize = quantize
    return margins


def prompt_of(speaker: Any, case: Case, heard: dict[str, Tensor]) -> Tensor:
    """int [9, 4 n]: the vendor's input for a case."""
    clip, voice = heard.get(case.clip), heard.get(case.voice)
    if case.task == TTS:
        made = speaker.get_tts_sft_prompt(
            case.text, case.instruct, read_text_only=not case.described, prompt_speech=voice
        )
    elif case.task == ASR:
        made = speaker.get_asr_sft_prompt(clip)
    elif case.task == UNDERSTANDING:
        made = speaker.get_audio_understanding_sft_prompt(clip, case.text, case.thinking)
    elif case.task == TEXT_DIALOGUE:
        turns = [{"role": "user", "content": case.text}]
        for said, _ in reversed(case.earlier):
            turns[:0] = [
                {"role": "user", "content": said},
                {"role": "assistant", "content": said.upper()},
            ]
        made = speaker.get_text_dialogue_sft_multiturn_prompt(turns, case.thinking)
    elif case.task == DIALOGUE:
        turns = [{"role": "user", "content": clip}]
        for said, sound in reversed(case.earlier):
            answer = {"text": said, "audio": heard[sound]}
            turns[:0] = [
                {"role": "user", "content": heard[sound]},
                {"role": "assistant", "content": answer},
            ]
        made = speaker.get_spoken_dialogue_sft_multiturn_prompt(turns, case.system, None)
        if voice is not None:
            # `if prompt_speech` is no question for a tensor of samples.
            made = speaker.get_spoken_dialogue_sft_prompt(clip, case.system, VoiceClip(voice))
    else:
        turns = [{"role": "user", "content": clip}]
        for said, sound in reversed(case.earlier):
            turns[:0] = [
                {"role": "user", "content": heard[sound]},
                {"role": "assistant", "content": said},
            ]
        made = speaker.get_s2t_dialogue_sft_multiturn_prompt(turns, case.thinking)
    prompt: Tensor = made
    return prompt


class VoiceClip:
    """Samples that are true, as the path of a file is."""

    def __init__(self, samples: Tensor) -> None:
        self.samples = samples


def answer(speaker: Any, module: Any, case: Case, prompt: Tensor) -> tuple[Tensor, Any]:
    """int64 [9, 4 m], the answer's ids and codes, and its audio (text where there is none)."""
    ends = [speaker.tokenizer.eos_token_id, speaker.im_end_idx]
    if case.task in (TTS, DIALOGUE):
        ends.append(speaker.eostm_idx)
    stopper = module.MiMoStopper(GROUP, CHANNELS, stop_tokens=ends)
    with contextlib.redirect_stdout(io.StringIO()):
        audio = speaker.forward(
            prompt,
            return_audio=True,
            stopping_criteria=[stopper],
            max_new_tokens=case.most,
            task_name=SAMPLERS.get(case.task, "spoken_dialogue"),
        )
    return speaker.history.reshape(-1, CHANNELS + 1).T[:, prompt.shape[1] :], audio


def record_cases(
    speaker: Any, module: Any, stem: str, arrays: dict[str, np.ndarray], margins: Margins
) -> list[dict[str, Any]]:
    """Prompts and answers of all cases."""
    heard = {name: torch.tensor(samples) for name, samples in clips().items()}
    plain = speaker.preprocess_input
    speaker.preprocess_input = lambda given: plain(getattr(given, "samples", given))
    speaker.save_wav = lambda *_: None
    rows = []
    for case in CASES:
        margins.least = float("inf")
        prompt = prompt_of(speaker, case, heard)
        made, audio = answer(speaker, module, case, prompt)
        if margins.least < MIN_MARGIN:
            # Another machine may choose otherwise.
            print(f"{stem}/{case.name}: left out, a margin is {margins.least:.1e}", flush=True)
            continue
        arrays[f"{stem}/{case.name}/prompt-text"] = prompt[0, ::GROUP].numpy().astype(np.int32)
        arrays[f"{stem}/{case.name}/prompt-codes"] = prompt[1:].T.numpy().astype(np.uint16)
        arrays[f"{stem}/{case.name}/text"] = made[0, ::GROUP].numpy().astype(np.int32)
        arrays[f"{stem}/{case.name}/codes"] = made[1:].T.numpy().astype(np.uint16)
        samples = np.zeros(0) if isinstance(audio, str) else audio.flatten().numpy()
        arrays[f"{stem}/{case.name}/audio"] = samples[::AUDIO_STEP].astype(np.float32)
        spoken = int((made[1, ::GROUP] != speaker.speech_zeroemb_idx[0]).sum())
        rows.append(
            {
                "case": f"{stem}/{case.name}",
                "prompt": prompt.shape[1] // GROUP,
                "positions": made.shape[1] // GROUP,
                "spoken": spoken,
                "samples": len(samples),
                "loudest": round(float(np.abs(samples).max(initial=0.0)), 4),
                "margin": float(f"{margins.least:.2g}"),
            }
        )
        print(rows[-1], flush=True)
    return rows


def record_clips(speaker: Any, stem: str, arrays: dict[str, np.ndarray]) -> None:
    """Mel and codes of recordings, and which frames have codes that are no narrow choice."""
    margins = watch_codebooks()
    for name, samples in clips().items():
        margins.clear()
        mel = speaker.wav2mel(torch.tensor(samples))
        codes = speaker.preprocess_input(torch.tensor(samples)).reshape(-1, CHANNELS)
        least = torch.stack(margins[:CHANNELS]).amin(0)
        clear = torch.ones(len(codes), dtype=torch.bool)
        clear[: len(least)] = least >= CLEAR_MARGIN
        arrays[f"{stem}/clip-{name}/mel"] = mel.T.flatten().numpy()[::MEL_STEP]
        arrays[f"{stem}/clip-{name}/codes"] = codes.numpy().astype(np.uint16)
        arrays[f"{stem}/clip-{name}/clear"] = clear.numpy()
        print(stem, name, tuple(mel.shape), tuple(codes.shape), int((~clear).sum()), flush=True)
        if name in PROMPTED and not clear.all():
            sys.exit(f"{name}: a margin is {float(least.min()):.1e}: replace the clip")


def record_codes(speaker: Any, stem: str, arrays: dict[str, np.ndarray]) -> None:
    """Audio of codes, whole, and streamed by the vendor's window."""
    from src.mimo_audio_tokenizer.modeling_audio_tokenizer import StreamingCache, StreamingConfig

    codec = speaker.mimo_audio_tokenizer
    for name in (*CODES_CASES, ZEROS):
        codes = torch.tensor(codes_of(name).astype(np.int64).T)
        parts = [codec.decode(each) for each in codes.split(SEGMENT, dim=1)]
        samples = torch.cat(parts, -1).flatten().numpy()
        arrays[f"{stem}/codes-{name}/audio"] = samples[::AUDIO_STEP]
        print(stem, name, len(samples), float(np.abs(samples).max()), flush=True)
    cache, streamed = StreamingCache(), []
    parts = torch.tensor(codes_of(STREAMED).astype(np.int64).T).split(STREAMED_CHUNK, dim=1)
    for number, each in enumerate(parts, 1):
        last = number == len(parts)
        made, cache = codec.streaming_decode(
            each, [each.shape[1]], cache, StreamingConfig(), last_chunk=last
        )
        streamed += [part.flatten() for part in made if part is not None]
    arrays[f"{stem}/codes-{STREAMED}/streamed"] = torch.cat(streamed).numpy()[::AUDIO_STEP]


def main() -> None:
    """Write `recorded.npz` and `recorded.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path, help="a checkout of the vendor's repository")
    parser.add_argument("torchaudio", type=Path, help="folder of an unpacked wheel of torchaudio")
    given = parser.parse_args()
    module = import_vendor(given.vendor, given.torchaudio)
    torch.set_num_threads(1)
    arrays: dict[str, np.ndarray] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        for stem, shape in PRESETS.items():
            folder = Path(name) / stem
            build_tiny_mimo(folder, shape, SEED)
            speaker = module.MimoAudio(
                str(folder / LANGUAGE_MODEL), str(folder / AUDIO_TOKENIZER), "cpu"
            )
            margins = Margins()
            make_greedy(speaker, module, margins)
            record_clips(speaker, stem, arrays)
            record_codes(speaker, stem, arrays)
            rows += record_cases(speaker, module, stem, arrays, margins)
    np.savez_compressed(HERE / "recorded.npz", **arrays)  # type: ignore[arg-type]
    made_with = {"mimo-audio": "691ce54", "transformers": transformers.__version__}
    made_with |= {"torch": torch.__version__}
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    text = f'{{"made_with": {json.dumps(made_with)},\n "cases": [\n{lines}\n]}}\n'
    (HERE / "recorded.json").write_text(text)


if __name__ == "__main__":
    main()
