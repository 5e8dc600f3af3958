"""Loads the talker of a CosyVoice3 checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.cosyvoice3 import (
    CODES,
    INPUT,
    MODEL_FILE,
    SAMPLE_RATE_HZ,
    TALKER,
    VOICE,
)
from antiphon.pipelines.files import CONFIG_FILE, reading
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage, StageFacts
from antiphon.values.sampling import Sampling
from antiphon_services.cosyvoice3.talker.engine import SpeechTalkerEngine
from antiphon_services.cosyvoice3.talker.fields import LAYER_PARTS, PARTS
from antiphon_services.cosyvoice3.talker.front_end import UtteranceFrontEnd
from antiphon_services.cosyvoice3.talker.interleaved import MixRatio
from antiphon_services.cosyvoice3.talker.module import UNUSED, SpeechTalkerModule
from antiphon_services.cosyvoice3.talker.reference import VoiceEncoder
from antiphon_services.cosyvoice3.talker.sentences import spell_numbers
from antiphon_services.cosyvoice3.talker.talker import SpeechTalker
from antiphon_services.cosyvoice3.talker.tokenizer import END_OF_PROMPT, load_speech_tokenizer
from antiphon_services.cosyvoice3.talker.voices import read_voices
from antiphon_services.lm.memory import module_bytes, say_memory
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.repetition_aware import RepetitionRule
from antiphon_services.lm.spoken_warm_up import reference_options, speak_text
from antiphon_services.stage.budgets import frame_rows
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import TORCH, require_plain_torch
from antiphon_services.stage.hugging_face import load_config
from antiphon_services.stage.hyperpyyaml import read_hyperpyyaml
from antiphon_services.stage.memory_plan import (
    StageMemory,
    StoredPart,
    decoder_memory,
    planned_limit,
)
from antiphon_services.stage.precision import BFLOAT16, compute_dtype
from antiphon_services.stage.preparation import Preparations

LAYERS_FOLDER, WEIGHTS_FILE = "CosyVoice-BlankEN", "llm.pt"

MAX_TOKENS = 1 << 16
"""The default maximum number of draws in a request, which corresponds to 44 minutes.

In addition, the length of the text limits the number of draws in each utterance.
"""

MIX = (5, 15)
"""The default ratio of text tokens to codes for streamed text."""

# The number of rows that are not text. They include the codes and the transcript of the recording,
# and the assistant's turn.
OTHER_ROWS = 64


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the talker.

    Raises `FailedPrecondition` if the checkpoint cannot be read.
    """
    layers: Qwen2Config = load_config(Qwen2Config, model_dir / LAYERS_FOLDER)
    stored = StoredPart(Weights(model_dir, WEIGHTS_FILE), skip=UNUSED)
    return decoder_memory(TALKER, config, layers, stored)


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the talker, its text front end, and the encoder for reference recordings.

    Raises `InvalidArgument` if a setting is not supported, or if the slots do not fit in memory.
    Raises `FailedPrecondition` if the parts of the checkpoint do not match, or if onnxruntime is
    not installed.
    """
    require_plain_torch(TALKER, config)
    path, folder = model_dir / MODEL_FILE, model_dir / LAYERS_FOLDER
    told = read_hyperpyyaml(path)
    check_fields(path, told, PARTS)
    layers: Qwen2Config = load_config(Qwen2Config, folder)
    check_fields(folder / CONFIG_FILE, layers.to_dict(), LAYER_PARTS)
    limit = planned_limit(memory(model_dir, config))
    module = load_submodule(
        SpeechTalkerModule,
        layers,
        "",
        Weights(model_dir, WEIGHTS_FILE),
        dtype=compute_dtype(TALKER, config, on_gpu=BFLOAT16),
        device=torch.device(config.device),
        ignored=UNUSED,
    )
    weight_bytes = module_bytes(module)
    with reading(path):
        sampling, rule = _drawing(told["llm"]["sampling"])
        mix = MixRatio(*map(int, told["llm"].get("mix_ratio", MIX)))
    # This imports a package, so that the first text with a number does not have to wait for it.
    spell_numbers("1")
    tokenizer = load_speech_tokenizer(folder, layers.vocab_size)
    front_end = UtteranceFrontEnd(
        tokenizer,
        read_voices(model_dir, layers.vocab_size, tokenizer.control[END_OF_PROMPT]),
        VoiceEncoder(model_dir),
        context_limit=limit,
        mix=mix,
    )
    model = SpeechTalker(module, rule, context_limit=limit, slots=config.slots)
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(model_dir),
        engine=TORCH,
        default_sampling=sampling,
        voices=front_end.voices,
        code_groups=1,
        code_entries=model.code_sizes[0],
        context_limit=limit,
        input_kinds=("text",),
        max_input_text_bytes=front_end.max_text_bytes,
    )
    engine = SpeechTalkerEngine(
        model,
        front_end,
        limit,
        prefill_rows=frame_rows(config),
        preparations=Preparations.of(config),
    )
    _warm_up(engine, sampling, config.slots, limit)
    say_memory(TALKER, model.cache.memory, {"weights": weight_bytes}, there=model.cache.bytes)
    return LoadedStage(engine, facts)


def _drawing(told: dict[str, Any]) -> tuple[Sampling, RepetitionRule]:
    """Return the sampling settings and the repetition rule of the checkpoint."""
    window = int(told["win_size"])
    sampling = Sampling(
        temperature=1.0,
        top_k=int(told["top_k"]),
        top_p=float(told["top_p"]),
        repetition_penalty=1.0,
        seed=0,
        max_tokens=MAX_TOKENS,
    )
    return sampling, RepetitionRule(window, repeats=window * float(told["tau_r"]))


def _warm_up(engine: SpeechTalkerEngine, sampling: Sampling, slots: int, limit: int) -> None:
    """Warm up the engine, as described in `antiphon_services.lm.warm_up`.

    Raises `Internal` if the engine does not emit any codes.
    """
    options = reference_options(SAMPLE_RATE_HZ)
    speak_text(engine, INPUT, (VOICE, CODES), sampling, slots, limit - OTHER_ROWS, options)
