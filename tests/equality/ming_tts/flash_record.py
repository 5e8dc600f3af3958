"""Records what vllm-omni's port of the talker of Ming-flash-omni says to `flash_cases.py`, on a
tiny checkpoint made by seed.

It takes the folder of an unpacked wheel of vllm-omni 0.30, and one of torchaudio. vLLM itself is
replaced by stand-ins. See README.md.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import logging
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import torch
import transformers
from safetensors.torch import load_file

from antiphon.pipelines.ming_tts import LATENT_WIDTH, STEP_LATENTS
from antiphon.values.sampling import stream_key
from antiphon_services.flow.normal_draws import normal_draws
from antiphon_services.ming_tts.talker.reference import CLIP_KEY
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.ming_tts.tiny_shape import FLASH
from tests.equality.ming_tts.flash_cases import MOST_STEPS, NAMES, flash_cases, made_texts
from tests.equality.ming_tts.ming_cases import (
    AUDIO_STEP,
    CLIP,
    DESCRIPTION,
    LATENT_STEP,
    PLAIN,
    RATE_HZ,
    REFERENCE_TEXT,
    SEED,
    STYLE,
    Case,
    reference_audio,
)

HERE = Path(__file__).parent
WHEEL = "vllm-omni 0.30.0"
MIN_MARGIN = 1e-3
LEAST_STEPS = 3
"""The last step, from 0, that the stop head may not end: as in Ming-omni-tts."""
MODELS = "vllm_omni.model_executor.models"


class Draws:
    """The numbers of one request's draws, in place of torch's."""

    def __init__(self) -> None:
        self.key, self.step = 0, -1

    def randn(self, size: tuple[int, ...], **_: Any) -> torch.Tensor:
        """What a step begins with [1, 4, 64], then the noise of its ten parts."""
        count = STEP_LATENTS * LATENT_WIDTH
        if len(size) == 3:
            self.step += 1
            return torch.from_numpy(normal_draws(self.key, self.step, count)).view(size)
        numbers = normal_draws(self.key, self.step, (1 + size[0]) * count)
        return torch.from_numpy(numbers[count:].copy()).view(size)


def import_port(wheel: Path, torchaudio: Path, draws: Draws) -> Any:
    """The port's modules."""

    def stub(name: str, **content: Any) -> Any:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(content)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
        return module

    sys.path.append(str(torchaudio))
    import torchaudio as audio

    stub("vllm").__path__ = []
    stub("vllm.logger", init_logger=logging.getLogger)
    stub("vllm.platforms", current_platform=None)
    for name in (
        "vllm_omni",
        "vllm_omni.model_executor",
        MODELS,
        f"{MODELS}.common",
        f"{MODELS}.common.ming",
        f"{MODELS}.ming_flash_omni",
        "vllm_omni.model_executor.layers",
        "vllm_omni.model_executor.model_loader",
    ):
        stub(name).__path__ = [str(wheel / name.replace(".", "/"))]
    nothing = dict.fromkeys(
        ("ModelLocalKVScope", "ModelLocalKVSpec", "RowDriver", "spec_from_hf_config")
    )
    stub(f"{MODELS}.model_local_kv", **nothing)
    stub(
        "vllm_omni.model_executor.model_loader.weight_utils",
        resolve_model_to_local_path=lambda path, **_: path,
    )
    port = types.SimpleNamespace()
    from vllm_omni.model_executor.models.common.ming import aggregator, audio_vae
    from vllm_omni.model_executor.models.ming_flash_omni import (
        prompt_utils,
        talker_module,
        text_processing,
        voice_presets,
    )

    class Torch:
        """`torch`, but for what draws."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def randn(self, size: tuple[int, ...], **named: Any) -> torch.Tensor:
            return draws.randn(size, **named)

        def randn_like(self, like: torch.Tensor) -> torch.Tensor:
            """For the audio encoder [1, 64, latents]."""
            _, width, count = like.shape
            numbers = normal_draws(CLIP_KEY, 0, count * width).reshape(count, width)
            return torch.from_numpy(numbers.T.copy())[None]

    talker_module.torch = audio_vae.torch = Torch()

    class Float32:
        """`torch`, where the port casts recordings to bfloat16."""

        bfloat16 = torch.float32

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    voice_presets.torch = Float32()
    # The port interpolates recordings of other rates; the vendor's code resamples with torchaudio.
    voice_presets.resample = audio.functional.resample
    port.aggregator, port.audio_vae, port.prompts = aggregator, audio_vae, prompt_utils
    port.talker, port.voices = talker_module, voice_presets
    port.cut = text_processing.cut_text_by_semantic_length
    return port


class Speaker:
    """The port's talker on a checkpoint, in float32 on a CPU."""

    def __init__(self, port: Any, folder: Path) -> None:
        talker = folder / "talker"
        config = json.loads((talker / "config.json").read_text())
        layers = transformers.Qwen2Config.from_pretrained(
            str(talker / "llm"), attn_implementation="sdpa"
        )
        width = layers.hidden_size
        self.port = port
        self.model = transformers.Qwen2Model(layers)
        flow = {"llm_cond_dim": width} | config["flowmodel"]
        self.cfm = port.talker.CFM(port.talker.DiT(**flow), steps=config["steps"])
        self.aggregator = port.aggregator.Aggregator(llm_input_dim=width, **config["aggregator"])
        self.stop_head = torch.nn.Linear(width, 2)
        self.spk_head = torch.nn.Linear(192, width)
        stored = load_file(talker / "model.safetensors")
        for name in ("model", "cfm", "aggregator", "stop_head", "spk_head"):
            own = {
                key.removeprefix(f"{name}."): tensor
                for key, tensor in stored.items()
                if key.startswith(f"{name}.")
            }
            getattr(self, name).load_state_dict(own)
            getattr(self, name).eval()
        vae = port.audio_vae.AudioVAE(port.audio_vae.AudioVAEConfig.from_pretrained(talker / "vae"))
        vae.load_state_dict(load_file(talker / "vae" / "model.safetensors"))
        self.vae = vae.eval()
        settings = types.SimpleNamespace(**{k: config[k] for k in ("steps", "patch_size")})
        self.generator = port.talker.MingAudioGenerator(
            settings,
            layers,
            self.model,
            self.cfm,
            self.aggregator,
            self.stop_head,
            vae,
            STEP_LATENTS,
            config["history_patch_size"],
            LATENT_WIDTH,
            config["cfg_strength"],
            False,
        )
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(talker / "llm"))
        self.voices = port.voices.VoicePresetRegistry(
            talker_dir=str(talker),
            model_path=str(folder),
            download_dir=None,
            audio_vae=vae,
            aggregator=self.aggregator,
            spk_head=self.spk_head,
            patch_size=STEP_LATENTS,
        )
        self.voices.load_presets_from_manifest(device=torch.device("cpu"), dtype=torch.float32)
        assert set(self.voices.registered) == set(NAMES), self.voices.registered

    def ask(self, case: Case) -> dict[str, Any]:
        """The stop head's logits, the latents and the samples of a request."""
        voice: dict[str, Any] = {}
        words = instruction = None
        if case.mode in NAMES:
            voice = self.voices.get(case.mode)
            words = voice["prompt_text"]
        elif case.mode not in (PLAIN, DESCRIPTION):
            voice = self.voices.get("reference")
            words = REFERENCE_TEXT if case.mode == CLIP else None
        speaker = voice.get("spk_emb")
        if case.mode == DESCRIPTION:
            instruction = self.port.prompts.create_instruction({"风格": STYLE})
            speaker = [torch.zeros(1, self.model.config.hidden_size)]
        stops: list[npt.NDArray[np.float32]] = []
        hook = self.stop_head.register_forward_hook(
            lambda _m, _g, out: stops.append(out[0].numpy())
        )
        latents: list[torch.Tensor] = []
        lengths = []
        for text in utterances(self.port, case.text):
            rows, _ = self.port.talker.build_tts_input(
                tokenizer=self.tokenizer,
                embed_tokens=self.model.get_input_embeddings(),
                device=torch.device("cpu"),
                dtype=torch.float32,
                text=text,
                prompt=self.port.prompts.DEFAULT_PROMPT,
                spk_emb=speaker,
                instruction=instruction,
                prompt_text=words,
                prompt_wav_emb=voice.get("prompt_wav_emb"),
            )
            most = min(case.most_steps, MOST_STEPS)
            latents += self.generator.generate_latents(
                inputs_embeds=rows,
                prompt_wav_lat=voice.get("prompt_wav_lat"),
                min_new_token=LEAST_STEPS,
                max_steps=self.generator.duration_capped_steps(len(text), most),
                temperature=case.temperature,
            )
            lengths.append(len(latents) - sum(lengths))
        hook.remove()
        made = torch.cat(latents, 1)
        audio, _, _ = self.vae.decode(
            made, use_cache=False, stream_state=(None, None, None), last_chunk=True
        )
        return {
            "stop": np.array(stops),
            "latents": made[0].numpy(),
            "audio": audio.numpy().reshape(-1),
            "lengths": np.array(lengths),
        }


def utterances(port: Any, text: str) -> list[str]:
    """A text as the port's front end divides it, without its spelling of numbers.

    Texts of one utterance stay as they are.
    """
    cut = [each.removeprefix("，").strip() for each in port.cut(text.strip())]  # noqa: RUF001
    cut = [each for each in cut if each]
    return cut if len(cut) > 1 else [text]


def all_ended(seen: dict[str, Any]) -> bool:
    """Whether the stop head ended every utterance."""
    last = np.cumsum(seen["lengths"]) - 1
    stops = seen["stop"][last, 1] > seen["stop"][last, 0]
    return bool((stops & (seen["lengths"] > LEAST_STEPS + 1)).all())


def main() -> None:
    """Write `recorded_flash.npz`, `recorded_flash.json` and `recorded_cuts.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=Path, help="folder of the unpacked wheel of vllm-omni 0.30")
    parser.add_argument("torchaudio", type=Path, help="folder of an unpacked wheel of torchaudio")
    given = parser.parse_args()
    torch.set_num_threads(1)
    draws = Draws()
    port = import_port(given.wheel, given.torchaudio, draws)
    arrays: dict[str, npt.NDArray[Any]] = {}
    rows = []
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name)
        build_tiny_ming(folder / "tiny", FLASH, SEED)
        speaker = Speaker(port, folder / "tiny")
        soundfile.write(folder / "reference.wav", reference_audio(), RATE_HZ)
        speaker.voices.register(
            "reference",
            str(folder / "reference.wav"),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        for number, case in enumerate(flash_cases()):
            for seed in range(number, 10_000, 100):
                draws.key, draws.step = stream_key(seed, "talker"), -1
                seen = speaker.ask(case)
                margins = seen["stop"][:, 1] - seen["stop"][:, 0]
                if np.abs(margins).min() >= MIN_MARGIN:
                    break
            steps = len(margins)
            ended = bool(margins[-1] > 0 and steps > LEAST_STEPS + 1)
            arrays[f"{case.name}/latents"] = seen["latents"][:, ::LATENT_STEP]
            arrays[f"{case.name}/audio"] = seen["audio"][::AUDIO_STEP]
            row = {"case": case.name, "seed": seed, "steps": steps, "ended": ended}
            if len(seen["lengths"]) > 1:
                row["utterances"] = seen["lengths"].tolist()
                row["ended"] = all_ended(seen)
            rows.append(row)
            print(rows[-1], float(np.abs(seen["audio"]).max()), flush=True)
    np.savez_compressed(HERE / "recorded_flash.npz", **arrays)
    cuts = [[text, utterances(port, text)] for text in made_texts()]
    (HERE / "recorded_cuts.json").write_text(
        "[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in cuts) + "\n]\n"
    )
    made_with = {"port": WHEEL, "transformers": transformers.__version__}
    made_with |= {"torch": torch.__version__}
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    text = f'{{"made_with": {json.dumps(made_with)},\n "cases": [\n{lines}\n]}}\n'
    (HERE / "recorded_flash.json").write_text(text)


if __name__ == "__main__":
    main()
