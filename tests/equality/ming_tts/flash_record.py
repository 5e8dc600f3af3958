"""Records what the vendor's talker of Ming-flash-omni says to `flash_cases.py`, on a tiny
checkpoint made by seed.

It takes a checkout of inclusionAI/Ming, and the folder of an unpacked wheel of torchaudio.
Stand-ins replace CUDA graphs and the normalization of texts. See README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import itertools
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

from antiphon.pipelines.ming_tts import (
    FRAME_SAMPLES,
    LATENT_WIDTH,
    STEP_LATENTS,
    TALKER_FOLDER,
    VOICES_FILE,
)
from antiphon.values.sampling import stream_key
from antiphon_services.flow.normal_draws import normal_draws
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.ming_tts.tiny_shape import FLASH
from tests.equality.ming_tts.flash_cases import LIMITED, NAMES, flash_cases
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
from tests.equality.ming_tts.ming_record import PROMPT, Posterior

HERE = Path(__file__).parent
COMMIT = "2a0c02a"
MIN_MARGIN = 1e-3
LEAST_STEPS = 3
"""The last step, from 0, that the stop head may not end: as in Ming-omni-tts."""
STREAMED_STEPS = 150
MOST_SILENCE = 4410
"""Samples: the vendor's code drops the last part of a window."""
UNDIVIDED = "STYLE"
"""A task whose text is spoken as one utterance. Otherwise, it is the same as `TTS`."""


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


class Captured:
    """A call of the language model within a CUDA graph, made again at each replay."""

    recording: Captured | None = None
    """The graph that is being captured."""

    def __init__(self) -> None:
        self.call: Any = None
        self.made = types.SimpleNamespace(last_hidden_state=None)

    def replay(self) -> None:
        """Make the call with the current content of its tensors."""
        self.made.last_hidden_state = self.call().last_hidden_state


class Cuda:
    """`torch.cuda` on a CPU."""

    CUDAGraph = Captured

    @contextlib.contextmanager
    def graph(self, graph: Captured) -> Iterator[None]:
        """Keep the call instead of making it."""
        Captured.recording = graph
        yield
        Captured.recording = None

    def stream(self, _: object) -> contextlib.nullcontext[None]:
        """There are no streams."""
        return contextlib.nullcontext()

    Stream = staticmethod(lambda *_: None)
    is_available = staticmethod(lambda: False)


class Torch:
    """`torch` as the vendor's talker sees it."""

    bfloat16 = torch.float32
    """Recordings stay in float32."""

    def __init__(self, draws: Draws) -> None:
        self.randn, self.cuda, self.width = draws.randn, Cuda(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: int, **how: Any) -> torch.Tensor:
        """A speaker of zeros has the width of the tiny checkpoint's language model."""
        return torch.zeros(*(self.width if each == 896 else each for each in size), **how)


def import_vendor(vendor: Path, torchaudio: Path) -> tuple[Any, Any]:
    """The vendor's modules of the talker and of its example."""

    def stub(name: str, **content: Any) -> Any:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(content)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
        return module

    sys.path[:0] = [str(vendor), str(torchaudio)]
    for name in ("diffusers", "diffusers.models", "diffusers.models.autoencoders"):
        stub(name).__path__ = []
    stub(
        "diffusers.models.autoencoders.autoencoder_oobleck",
        OobleckDiagonalGaussianDistribution=Posterior,
    )
    # Both normalizers leave a text as it is.
    stub("talker_tn").__path__ = []
    stub("talker_tn.talker_tn", TalkerTN=lambda: types.SimpleNamespace(normalize=str))
    stub("front").__path__ = [str(vendor / "front")]
    stub("front.number_en", normalize_numbers=str)
    import torchaudio as audio

    def load(path: str, **_: Any) -> tuple[torch.Tensor, int]:
        """One channel: the vendor's code takes the channels of a recording for several ones."""
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        return torch.from_numpy(samples.mean(1)[None].copy()), rate

    audio.load = load
    stub("peft", PeftModel=None)
    import modeling_bailing_talker
    import test_talker

    return modeling_bailing_talker, test_talker


class Eager:
    """A step of the flow as the vendor's graph captures it, made anew at each replay."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    def replay(self) -> None:
        """Compute the step from the current content of its tensors."""
        own = self.executor
        own.gen_lat_placeholder = own.cfm.sample(
            own.last_hidden_state_placeholder,
            own.his_lat_placeholder,
            own.randn_like_placeholder,
            own.t_placeholder,
            own.sde_args_placeholder,
            own.sde_rnd_placeholder,
        )
        own.inputs_embeds_placeholder = own.aggregator(own.gen_lat_placeholder)
        logits = own.stop_head(own.last_hidden_state_placeholder[:, -1, :])
        own.stop_out_placeholder = logits.softmax(dim=-1)


def eager(executor: Any) -> Any:
    """The vendor's `CFMGraphExecutor`, without a graph."""

    class EagerExecutor(executor):  # type: ignore[misc]
        def _initialize_graph(self, hidden: Any, history: Any, draw: Any, noise: Any) -> None:
            self.last_hidden_state_placeholder = torch.empty_like(hidden)
            self.his_lat_placeholder = torch.empty_like(history)
            self.randn_like_placeholder = torch.empty_like(draw)
            self.t_placeholder = torch.empty(self.config.steps + 1)
            self.sde_args_placeholder = torch.empty(3)
            self.sde_rnd_placeholder = torch.empty_like(noise)
            self.graph, self.initialized = Eager(self), True

    return EagerExecutor


class Speaker:
    """The vendor's talker on a checkpoint, in float32 on a CPU."""

    def __init__(self, vendor: tuple[Any, Any], folder: Path, draws: Draws) -> None:
        talker, example = vendor
        talker.torch = Torch(draws)
        _configure(folder)
        talker.CFMGraphExecutor = eager(talker.CFMGraphExecutor)
        self.model = _loaded(talker.BailingTalker2, folder)
        self.example = object.__new__(example.Talker)
        self.example.model, self.example.stream = self.model, False
        self.vae = self.example.vae = _loaded(example.AudioVAE, folder / "vae")
        talker.torch.width = self.model.model.config.hidden_size
        # A first request would capture the graphs.
        self.model.initialized = True
        listed = json.loads((folder / VOICES_FILE).read_text())
        assert tuple(listed) == NAMES, listed
        self.voices = {
            name: (str(folder / each["prompt_wav_path"]), each["prompt_text"])
            for name, each in listed.items()
        }
        self._capture_calls()
        self.chunks = self._chunks()

    def _capture_calls(self) -> None:
        forward = self.model.model.forward

        def called(**how: Any) -> Any:
            graph = Captured.recording
            if graph is None:
                return forward(**how)
            graph.call = lambda: forward(**how)
            return graph.made

        self.model.model.forward = called

    def _chunks(self) -> list[torch.Tensor]:
        """The samples that each step adds to a stream [1, n], without the last ones."""
        cache = {"past_key_values": None, "stream_state": (None, None, None)}
        chunks = []
        for _ in range(STREAMED_STEPS):
            step = [torch.zeros(1, STEP_LATENTS, LATENT_WIDTH)]
            made, cache = self.model.token2wav(self.vae, step, cache, stream=True)
            chunks.append(made)
        return chunks

    def longest(self, characters: int) -> int:
        """How many steps of a text the vendor's code streams at most."""
        self.model.tts_job = lambda **_: ({"tts_speech": each} for each in self.chunks)
        streamed = self.model.omni_audio_generation(
            "a" * characters, voice_name=None, audio_detokenizer=self.vae, stream=True
        )
        count = sum(each[0].shape[1] for each in streamed)
        del self.model.tts_job
        steps = -(-count // FRAME_SAMPLES)
        assert steps < STREAMED_STEPS, characters
        return steps

    def speakers(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """The speaker [192] that the vendor's code takes from each listed recording."""
        extract = self.model.spkemb_extractor
        heard: list[torch.Tensor] = []

        def keep(wave: torch.Tensor) -> torch.Tensor:
            heard.append(extract(wave))
            return heard[-1]

        self.model.spkemb_extractor = keep
        for name, (path, _) in self.voices.items():
            self.model.register_prompt_wav(path, self.vae)
            yield name, heard[-1][0].numpy()
        self.model.spkemb_extractor = extract

    @contextlib.contextmanager
    def watching(self, most_steps: int, seen: dict[str, list[Any]]) -> Iterator[None]:
        """Keep the latents and the stop head's logits, and limit the steps."""
        generate = self.model.generate

        def steps(**how: Any) -> Iterator[Any]:
            made = generate(min_new_token=LEAST_STEPS, **how)
            count = 0
            for each in itertools.islice(made, most_steps):
                count += 1
                seen["latents"].append(each[0][0].numpy())
                yield each
            seen["lengths"].append(count)

        # A generation that is cut short does not give its graph back.
        self.model.model_graph_pool.put((None,) * 5)
        self.model.generate = steps
        hook = self.model.stop_head.register_forward_hook(
            lambda _m, _g, out: seen["stop"].append(out[0].detach().numpy())
        )
        try:
            yield
        finally:
            del self.model.generate
            hook.remove()

    def ask(self, case: Case, texts: list[str], wav: str) -> dict[str, Any]:
        """The stop head's logits, the latents and the samples of a request."""
        how: dict[str, Any] = {}
        if case.mode in NAMES:
            how["prompt_wav_path"], how["prompt_text"] = self.voices[case.mode]
            how["use_spk_emb"] = True
        elif case.mode == DESCRIPTION:
            how = {"instruction": {"风格": STYLE}, "use_zero_spk_emb": True}
        elif case.mode != PLAIN:
            how = {"prompt_wav_path": wav, "use_spk_emb": True}
            how["prompt_text"] = REFERENCE_TEXT if case.mode == CLIP else None
        seen: dict[str, list[Any]] = {each: [] for each in ("latents", "stop", "lengths")}
        said = []
        for text in texts:
            with self.watching(min(case.most_steps, self.longest(len(text))), seen):
                said.append(
                    self.example.speech_generation(
                        prompt=PROMPT,
                        text=text,
                        temperature=case.temperature,
                        output_wav_path=None,
                        taskname=UNDIVIDED,
                        **how,
                    )
                )
        latents = np.concatenate(seen["latents"])
        whole = self.vae.decode(torch.from_numpy(latents)[None])[0].numpy().reshape(-1)
        if len(texts) == 1:
            own = said[0].numpy().reshape(-1)
            assert 0 <= len(whole) - len(own) < MOST_SILENCE, (len(whole), len(own))
            np.testing.assert_array_equal(whole[: len(own)], own)
        return {
            "stop": np.array(seen["stop"]),
            "latents": latents,
            "audio": whole,
            "lengths": np.array(seen["lengths"]),
        }


def _configure(folder: Path) -> None:
    """Set what the vendor's code needs for these sizes, and for attention on a CPU."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    width = json.loads((folder / "llm" / "config.json").read_text())["hidden_size"]
    config["flowmodel"] |= {"attn_backend": "torch", "llm_cond_dim": width}
    config["aggregator"] |= {"attn_backend": "torch"}
    path.write_text(json.dumps(config))


def _loaded(model: Any, folder: Path) -> Any:
    """A model of the vendor, all of whose weights are in the checkpoint."""
    loaded, report = model.from_pretrained(
        str(folder), torch_dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    return loaded.eval().requires_grad_(False)


def all_ended(seen: dict[str, Any]) -> bool:
    """Whether the stop head ended every utterance."""
    last = np.cumsum(seen["lengths"]) - 1
    stops = seen["stop"][last, 1] > seen["stop"][last, 0]
    return bool((stops & (seen["lengths"] > LEAST_STEPS + 1)).all())


def main() -> None:
    """Write `recorded_flash.npz` and `recorded_flash.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path, help="a checkout of inclusionAI/Ming")
    parser.add_argument("torchaudio", type=Path, help="folder of an unpacked wheel of torchaudio")
    given = parser.parse_args()
    torch.set_num_threads(1)
    draws = Draws()
    vendor = import_vendor(given.vendor, given.torchaudio)
    divided = dict(json.loads((HERE / "recorded_cuts.json").read_text()))
    arrays: dict[str, npt.NDArray[Any]] = {}
    rows = []
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        build_tiny_ming(folder / "tiny", FLASH, SEED)
        speaker = Speaker(vendor, folder / "tiny" / TALKER_FOLDER, draws)
        soundfile.write(folder / "reference.wav", reference_audio(), RATE_HZ)
        longest = {each: speaker.longest(each) for each in LIMITED}
        for voice, vector in speaker.speakers():
            arrays[f"voice-{voice}/speaker"] = vector
        for number, case in enumerate(flash_cases()):
            texts = divided.get(case.text, [case.text])
            for seed in range(number, 10_000, 100):
                draws.key, draws.step = stream_key(seed, "talker"), -1
                seen = speaker.ask(case, texts, str(folder / "reference.wav"))
                margins = seen["stop"][:, 1] - seen["stop"][:, 0]
                if np.abs(margins).min() >= MIN_MARGIN:
                    break
            arrays[f"{case.name}/latents"] = seen["latents"][:, ::LATENT_STEP]
            arrays[f"{case.name}/audio"] = seen["audio"][::AUDIO_STEP]
            row = {"case": case.name, "seed": seed, "steps": len(margins)}
            row["ended"] = all_ended(seen)
            if len(texts) > 1:
                row["utterances"] = seen["lengths"].tolist()
            rows.append(row)
            print(row, float(np.abs(seen["audio"]).max()), flush=True)
    np.savez_compressed(HERE / "recorded_flash.npz", **arrays)
    made_with = {"ming": COMMIT, "transformers": transformers.__version__}
    made_with |= {"torch": torch.__version__}
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    told = f'{{"made_with": {json.dumps(made_with)},\n "longest": {json.dumps(longest)},\n'
    (HERE / "recorded_flash.json").write_text(f'{told} "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
