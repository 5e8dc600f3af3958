"""Records what the vendor's code says to `ming_cases.py`, on a tiny checkpoint made by seed.

Runs in an environment of its own: see the README beside this file. The vendor's code draws from
torch's global generator: here its numbers are antiphon's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import importlib.util
import json
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import torch
import transformers

from antiphon.pipelines.ming_tts import LATENT_WIDTH, STEP_LATENTS
from antiphon.values.sampling import stream_key
from antiphon_services.flow.normal_draws import normal_draws
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.ming_tts.tiny_shape import WINDOWED
from tests.equality.ming_tts.ming_cases import (
    AUDIO_STEP,
    CLIP,
    DESCRIPTION,
    LATENT_STEP,
    NAMED,
    PLAIN,
    RATE_HZ,
    REFERENCE_TEXT,
    SEED,
    STYLE,
    VOICE_NAME,
    Case,
    all_cases,
    clips,
)

HERE = Path(__file__).parent
PROMPT = "Please generate speech based on the following description.\n"
COMMIT = "200a156"
CLIP_KEY = 0
"""Of the numbers behind a recording's latents, whatever the request's seed is."""
MIN_MARGIN = 1e-3
"""Between the two logits of the stop head."""
STREAMED_TOLERANCE = 2e-5
HIDDEN_STEP = 3

Floats = npt.NDArray[np.float32]


class Narrow(Exception):
    """Another machine could have stopped elsewhere."""


class Draws:
    """The numbers of one request's draws, in place of torch's."""

    def __init__(self) -> None:
        self.key, self.step, self._numbers, self._used = 0, -1, np.zeros(0, np.float32), 0

    def begin(self, seed: int) -> None:
        """The request with this seed comes next."""
        self.key, self.step = stream_key(seed, "talker"), -1

    def begin_step(self) -> None:
        """The next step's flow comes next."""
        self.step, self._used = self.step + 1, 0
        self._numbers = normal_draws(self.key, self.step, 16 * STEP_LATENTS * LATENT_WIDTH)

    def latents(self) -> torch.Tensor:
        """[1, 4, 64]: the step's next numbers."""
        first, count = self._used, STEP_LATENTS * LATENT_WIDTH
        self._used += count
        taken = self._numbers[first : self._used].reshape(1, STEP_LATENTS, LATENT_WIDTH)
        return torch.from_numpy(taken.copy())


def import_vendor(vendor: Path, torchaudio: Path, draws: Draws) -> Any:
    """The vendor's modules, with stand-ins for what only other models use."""

    def stub(name: str, **content: Any) -> Any:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(content)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
        return module

    sys.path[:0] = [str(vendor), str(torchaudio), str(vendor / "cookbooks")]
    for name in ("diffusers", "diffusers.models", "diffusers.models.autoencoders"):
        stub(name).__path__ = []
    stub(
        "diffusers.models.autoencoders.autoencoder_oobleck",
        OobleckDiagonalGaussianDistribution=Posterior,
    )
    stub("modeling_bailing_moe", BailingMoeForCausalLM=None)
    stub("sentence_manager").__path__ = []
    stub("sentence_manager.sentence_manager", SentenceNormalizer=None)
    stub("audio_tokenizer", __path__=[str(vendor / "audio_tokenizer")])
    stub("audio_tokenizer.audio_encoder", WhisperAudioEncoder=None)
    import torchaudio as audio

    def load(path: str) -> tuple[torch.Tensor, int]:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        return torch.from_numpy(samples.T.copy()), rate

    audio.load = load
    import fm.CFM
    import fm.flowloss

    class Torch:
        """`torch` for the flow, but for what draws."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def randn(self, *size: int, device: Any) -> torch.Tensor:
            draws.begin_step()
            return draws.latents().transpose(1, 2).contiguous()

        def randn_like(self, like: torch.Tensor) -> torch.Tensor:
            return draws.latents()

    fm.flowloss.torch = fm.CFM.torch = Torch()
    spec = importlib.util.spec_from_file_location("ming_example", vendor / "cookbooks/test.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


class Posterior:
    """As diffusers' `OobleckDiagonalGaussianDistribution`, with antiphon's numbers."""

    def __init__(self, parameters: torch.Tensor) -> None:
        self.mean, scale = parameters.chunk(2, dim=1)
        self.std = torch.nn.functional.softplus(scale) + 1e-4

    def sample(self) -> torch.Tensor:
        """[1, 64, latents]."""
        _, width, count = self.mean.shape
        numbers = normal_draws(CLIP_KEY, 0, count * width).reshape(count, width)
        return self.mean + self.std * torch.from_numpy(numbers.T.copy())[None]


def make_speaker(example: Any, folder: Path) -> Any:
    """The vendor's `MingAudio` in float32 on a CPU; its constructor asks for a GPU."""
    from modeling_bailingmm import BailingMMNativeForConditionalGeneration as Model

    model, report = Model.from_pretrained(
        str(folder), torch_dtype=torch.float32, output_loading_info=True
    )
    assert set(report["missing_keys"]) <= {"model.lm_head.weight"}, report
    assert not report["unexpected_keys"], report
    assert not report["mismatched_keys"], report
    model.spk_head.register_forward_pre_hook(lambda _, given: (given[0].float(),))
    speaker = object.__new__(example.MingAudio)
    speaker.device, speaker.model = "cpu", model.eval()
    speaker.tokenizer = example.AutoTokenizer.from_pretrained(str(folder))
    model.tokenizer = speaker.tokenizer
    speaker.sample_rate = model.config.audio_tokenizer_config.sample_rate
    speaker.patch_size = model.config.ditar_config["patch_size"]
    speaker.spkemb_extractor = example.SpkembExtractor(f"{folder}/campplus.onnx")
    return speaker


@contextlib.contextmanager
def watching(model: Any, seen: dict[str, list[Any]]) -> Iterator[None]:
    """Keep the ids of the prompt, what goes to the stop head, and the latents, of one request."""
    prepared, sampled = model.prepare_input_embed, model.flowloss.sample

    def prepare(*given: Any, **named: Any) -> Any:
        ids, rows = prepared(*given, **named)
        seen["ids"].append(ids[0].numpy().astype(np.int32))
        seen["rows"].append(rows[0].numpy())
        return ids, rows

    def sample(*given: Any, **named: Any) -> Any:
        seen["hidden"].append(given[0][0, 0].numpy())
        latents, trajectory = sampled(*given, **named)
        seen["latents"].append(latents[0].numpy())
        return latents, trajectory

    def stopped(module: Any, given: Any, logits: torch.Tensor) -> None:
        seen["stop"].append(logits[0, 0].numpy())

    model.prepare_input_embed, model.flowloss.sample = prepare, sample
    hook = model.stop_head.register_forward_hook(stopped)
    try:
        yield
    finally:
        del model.prepare_input_embed, model.flowloss.sample
        hook.remove()


def ask(speaker: Any, case: Case, wav: str) -> tuple[dict[str, list[Any]], Floats]:
    """What was seen of a request, and the samples that the vendor streams."""
    seen: dict[str, list[Any]] = {each: [] for each in ("ids", "rows", "hidden", "latents", "stop")}
    how: dict[str, Any] = {}
    if case.mode == DESCRIPTION:
        how = {"instruction": {"风格": STYLE}, "use_zero_spk_emb": True}
    elif case.mode == NAMED:
        how = {"instruction": {"IP": VOICE_NAME}, "use_zero_spk_emb": True}
    elif case.mode != PLAIN:
        how = {"prompt_wav_path": wav, "use_spk_emb": True}
        how["prompt_text"] = REFERENCE_TEXT if case.mode == CLIP else None
    with watching(speaker.model, seen):
        streamed = speaker.speech_generation(
            prompt=PROMPT,
            text=case.text,
            max_decode_steps=case.most_steps,
            temperature=case.temperature,
            output_wav_path=None,
            **how,
        )
    return seen, streamed.numpy().reshape(-1)


def ended_by_itself(stop: npt.NDArray[np.float32]) -> bool:
    """Whether the stop head ended the request; raises `Narrow` if another machine's might not."""
    margins = stop[:, 1] - stop[:, 0]
    if np.abs(margins).min() < MIN_MARGIN:
        raise Narrow
    return bool(margins[-1] > 0 and len(stop) > 4)


def record_clips(speaker: Any, folder: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """What the vendor's front end takes from each recording."""
    for name, samples in clips().items():
        path = str(folder / f"{name}.wav")
        soundfile.write(path, samples, RATE_HZ)
        wave, embedding = speaker.preprocess_one_prompt_wav(path, use_spk_emb=True)
        padded = speaker.pad_waveform(wave)
        latents, _ = speaker.model.audio.encode_latent(padded, torch.tensor([padded.shape[1]]))
        arrays[f"recording-{name}/speaker"] = embedding[0].numpy()
        arrays[f"recording-{name}/count"] = np.array(latents.shape[1])
        arrays[f"recording-{name}/latents"] = latents[0].numpy()[:, ::LATENT_STEP]


def main() -> None:
    """Write `recorded.npz` and `recorded.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path, help="a checkout of inclusionAI/Ming-omni-tts")
    parser.add_argument("torchaudio", type=Path, help="folder of an unpacked wheel of torchaudio")
    given = parser.parse_args()
    draws = Draws()
    example = import_vendor(given.vendor, given.torchaudio, draws)
    arrays: dict[str, npt.NDArray[Any]] = {}
    told = []
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name)
        build_tiny_ming(folder / "tiny", WINDOWED, SEED)
        speaker = make_speaker(example, folder / "tiny")
        record_clips(speaker, folder, arrays)
        for number, case in enumerate(all_cases()):
            for seed in range(number, 10_000, 100):
                draws.begin(seed)
                seen, streamed = ask(speaker, case, str(folder / "reference.wav"))
                try:
                    ended = ended_by_itself(np.array(seen["stop"]))
                except Narrow:
                    continue
                break
            latents = np.concatenate(seen["latents"])
            whole = speaker.model.audio.decode(torch.from_numpy(latents)[None], use_cache=False)
            audio = whole[0].numpy().reshape(-1)
            apart = float(np.abs(audio[: len(streamed)] - streamed).max(initial=0.0))
            assert apart < STREAMED_TOLERANCE, apart
            arrays[f"{case.name}/ids"] = seen["ids"][0]
            arrays[f"{case.name}/rows"] = seen["rows"][0][::HIDDEN_STEP, ::HIDDEN_STEP]
            arrays[f"{case.name}/hidden"] = np.array(seen["hidden"])[:, ::HIDDEN_STEP]
            arrays[f"{case.name}/stop"] = np.array(seen["stop"])
            arrays[f"{case.name}/latents"] = latents[:, ::LATENT_STEP]
            arrays[f"{case.name}/audio"] = audio[::AUDIO_STEP]
            told.append(
                {
                    "case": case.name,
                    "seed": seed,
                    "steps": len(seen["latents"]),
                    "ended": ended,
                    "samples": len(audio),
                    "streamed": len(streamed),
                    "apart": apart,
                    "loudest": round(float(np.abs(audio).max()), 4),
                    "largest": round(float(np.abs(latents).max()), 3),
                }
            )
            print(told[-1], flush=True)
    np.savez_compressed(HERE / "recorded.npz", **arrays)
    made_with = {"ming_omni_tts": COMMIT, "transformers": transformers.__version__}
    made_with |= {"torch": torch.__version__}
    rows = ",\n".join("  " + json.dumps(row) for row in told)
    text = f'{{"made_with": {json.dumps(made_with)},\n "cases": [\n{rows}\n]}}\n'
    (HERE / "recorded.json").write_text(text)


if __name__ == "__main__":
    main()
