"""Loads the talker of a MiMo-Audio checkpoint: the language model and the recording encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading
from antiphon.pipelines.mimo_audio import (
    AUDIO_REPOSITORY,
    CODE_RATE_HZ,
    CODEBOOKS,
    CODES,
    GROUP_FRAMES,
    INPUT,
    SAMPLE_RATE_HZ,
    TALKER,
    TEXT,
)
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage, StageFacts
from antiphon.values.chunk import Tensor as Array
from antiphon.values.history import FRAMES, IDS
from antiphon.values.sampling import Sampling
from antiphon_services.lm.graphs import graphs_of
from antiphon_services.lm.memory import module_bytes, say_memory
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.readback import Readback
from antiphon_services.lm.spoken_warm_up import speak_text
from antiphon_services.mimo_audio.talker.draws import PositionDraws
from antiphon_services.mimo_audio.talker.engine import SpeechTextEngine
from antiphon_services.mimo_audio.talker.fields import ENCODER_PARTS, PARTS
from antiphon_services.mimo_audio.talker.frame_predictor import DelayedFramePredictor
from antiphon_services.mimo_audio.talker.group_encoder import GroupEncoder
from antiphon_services.mimo_audio.talker.model import SpeechTextModel
from antiphon_services.mimo_audio.talker.module import SpeechHeads, SpeechTextModule, per_channel
from antiphon_services.mimo_audio.talker.prompt import Codes, TaskPromptFactory
from antiphon_services.mimo_audio.talker.speech_encoder import CodecEncoderModule, SpeechEncoder
from antiphon_services.mimo_audio.talker.tokenizer import PromptTokenizer
from antiphon_services.mimo_audio.talker.vllm_engine.architectures import MODELS
from antiphon_services.stage.budgets import text_rows
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import VLLM, check_device, choose_engine, refuse_fused
from antiphon_services.stage.hugging_face import load_config
from antiphon_services.stage.memory_plan import (
    StageMemory,
    StoredPart,
    decoder_memory,
    planned_limit,
)
from antiphon_services.stage.precision import BFLOAT16, compute_dtype
from antiphon_services.stage.preparation import Preparations
from antiphon_services.text.detokenizer import Vocabulary
from antiphon_services.vllm import environment

DEFAULT_SAMPLING = Sampling(
    temperature=0.6, top_k=0, top_p=0.95, repetition_penalty=1.0, seed=0, max_tokens=8192
)
"""The vendor's settings for spoken dialogue. Other tasks use the temperature and `top_p` that are
defined in `prompt.py`.
"""

ENCODER_PREFIX, QUANTIZER = "encoder.", "quantizer"
CODEBOOK = f"{ENCODER_PREFIX}{QUANTIZER}.vq.layers.{{}}._codebook.embed"
# JSON_ESCAPE is the maximum number of JSON bytes for one byte of text. JSON_AROUND is the maximum
# number of bytes for the rest of the document.
JSON_ESCAPE, JSON_AROUND = 6, 64 << 10
OTHER_ROWS = 32
"""The number of rows in a prompt that do not contain text."""


@dataclass(frozen=True, slots=True)
class _Described:
    """The contents of the language model's directory except for its tensors.

    `limit` is the maximum number of positions.
    """

    layers: Qwen2Config
    limit: int
    dtype: torch.dtype
    empty_codes: Sequence[int]
    delays: Sequence[int]
    tokenizer: PromptTokenizer
    vocabulary: Vocabulary

    @classmethod
    def read(cls, model_dir: Path, config: StageConfig, engine: str) -> _Described:
        """Read the directory. Raises the same errors as `load`."""
        path = model_dir / CONFIG_FILE
        check_fields(path, read_config(model_dir), PARTS)
        layers: Qwen2Config = load_config(Qwen2Config, model_dir)
        with reading(path):
            empty_codes = per_channel(layers.speech_zeroemb_idx, len(CODEBOOKS))
            delays = per_channel(layers.delay_pattern, len(CODEBOOKS))
        if tuple(empty_codes) != CODEBOOKS:
            raise FailedPrecondition(
                f"{path}: speech_zeroemb_idx is {layers.speech_zeroemb_idx}, but this stage "
                f"uses codebooks of the sizes {list(CODEBOOKS)}; {REMEDY}"
            )
        limit = planned_limit(memory(model_dir, config, engine))
        dtype = compute_dtype(TALKER, config, on_gpu=BFLOAT16)
        tokenizer, hugging_face = PromptTokenizer.load(model_dir, layers.vocab_size)
        vocabulary = Vocabulary(hugging_face)
        return cls(layers, limit, dtype, empty_codes, delays, tokenizer, vocabulary)

    @property
    def seconds(self) -> float:
        """The maximum duration of a recording."""
        return self.limit * GROUP_FRAMES / CODE_RATE_HZ

    @property
    def text_bytes(self) -> int:
        """The maximum size of a text."""
        return self.limit * self.tokenizer.text.bytes_per_id

    def encoder(self, module: SpeechHeads) -> GroupEncoder:
        """Create the group encoder."""
        return GroupEncoder(
            module,
            empty_id=self.tokenizer.ids.group,
            empty_codes=self.empty_codes,
            group=GROUP_FRAMES,
            full=self.layers.input_full_attention,
        )

    def draws(self, module: SpeechHeads, config: StageConfig) -> PositionDraws:
        """Create the object that draws tokens and groups."""
        predictor = DelayedFramePredictor(
            module,
            config.slots,
            group=GROUP_FRAMES,
            delays=self.delays,
            empty_codes=self.empty_codes,
            bucketing=graphs_of(config),
        )
        return PositionDraws(
            module,
            predictor,
            empty_id=self.tokenizer.ids.group,
            empty_codes=self.empty_codes,
            slots=config.slots,
        )

    def settings(self, listener: SpeechEncoder, config: StageConfig) -> dict[str, Any]:
        """Return the arguments of a `SpeechTextEngine` except for its model."""
        prompts = TaskPromptFactory(
            self.tokenizer,
            RecordingEncoder(listener),
            self.empty_codes,
            group=GROUP_FRAMES,
            context_limit=self.limit,
        )
        return {
            "prompts": prompts,
            "vocabulary": self.vocabulary,
            "context_limit": self.limit,
            "max_text_bytes": JSON_ESCAPE * self.text_bytes + JSON_AROUND,
            "most_samples": round(self.seconds * SAMPLE_RATE_HZ),
            "prefill_rows": text_rows(config),
            "preparations": Preparations.of(config),
        }


def memory(model_dir: Path, config: StageConfig, engine: str = "") -> StageMemory:
    """Return the memory required for the language model and the recording encoder.

    If `engine` is empty, the engine that `load` would choose is used. Raises `InvalidArgument` and
    `FailedPrecondition`.
    """
    # With vLLM, each position requires a round trip to another process, so `auto` does not select
    # it.
    chosen = engine or choose_engine(TALKER, config, vllm_runs=lambda: False)
    codec = Weights(AUDIO_REPOSITORY.directory(model_dir, config.files))
    tables = (StoredPart.of_tensor(codec, CODEBOOK.format(each)) for each in range(len(CODEBOOKS)))
    return decoder_memory(
        TALKER,
        config,
        load_config(Qwen2Config, model_dir),
        StoredPart(Weights(model_dir)),
        StoredPart(codec, ENCODER_PREFIX, (f"{ENCODER_PREFIX}{QUANTIZER}.",)),
        *tables,
        engine=chosen,
    )


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the language model and its front ends for text and speech.

    Raises `InvalidArgument` if a setting is not supported, or if the slots do not fit in memory.
    Raises `FailedPrecondition` if the two directories do not match.
    """
    name = memory(model_dir, config).engine
    refuse_fused(TALKER, config)
    check_device(config)
    codec_dir = AUDIO_REPOSITORY.directory(model_dir, config.files)
    described = _Described.read(model_dir, config, name)
    if name == VLLM:
        engine = _load_vllm(model_dir, codec_dir, config, described)
    else:
        engine = _load_torch(model_dir, codec_dir, config, described)
    try:
        _warm_up(engine, config.slots, described.limit)
    except BaseException:
        engine.close()
        raise
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(model_dir, codec_dir),
        engine=name,
        default_sampling=DEFAULT_SAMPLING,
        code_groups=len(CODEBOOKS),
        code_entries=max(CODEBOOKS),
        context_limit=described.limit,
        input_kinds=("text", "audio"),
        input_sample_rate_hz=SAMPLE_RATE_HZ,
        max_input_audio_s=described.seconds,
        max_input_text_bytes=described.text_bytes,
        goes_on_from=(IDS, FRAMES),
    )
    return LoadedStage(engine, facts)


def _load_torch(
    model_dir: Path, codec_dir: Path, config: StageConfig, described: _Described
) -> SpeechTextEngine:
    module = load_submodule(
        SpeechTextModule,
        described.layers,
        "",
        Weights(model_dir),
        dtype=described.dtype,
        device=torch.device(config.device),
    )
    model = SpeechTextModel(
        module,
        described.encoder(module),
        described.draws(module, config),
        context_limit=described.limit,
        slots=config.slots,
        # The next position depends on what was drawn, so the result of each step is read before the
        # next step starts.
        readback=Readback(None),
    )
    listener = load_speech_encoder(codec_dir, described.dtype, config.device)
    parts = {"weights": module_bytes(module), "encoder": listener.bytes}
    say_memory(TALKER, model.cache.memory, parts, there=model.cache.bytes)
    return SpeechTextEngine(model, **described.settings(listener, config))


def _load_vllm(
    model_dir: Path, codec_dir: Path, config: StageConfig, described: _Described
) -> SpeechTextEngine:
    """Create an engine whose layers and word embeddings run in vLLM's processes."""
    environment.prepare(config, MODELS)
    # This imports vLLM, so its environment has to be prepared first.
    from antiphon_services.mimo_audio.talker.vllm_engine.loading import start_engine

    heads = load_submodule(
        SpeechHeads,
        described.layers,
        "",
        Weights(model_dir),
        dtype=described.dtype,
        device=torch.device(config.device),
        skip=("model",),
    )
    listener = load_speech_encoder(codec_dir, described.dtype, config.device)
    return start_engine(
        model_dir,
        config,
        described.layers,
        described.encoder(heads),
        described.draws(heads, config),
        described.settings(listener, config),
    )


def load_speech_encoder(codec_dir: Path, dtype: torch.dtype, device: str) -> SpeechEncoder:
    """Load the recording encoder. Raises `FailedPrecondition` if it cannot be loaded."""
    path = codec_dir / CONFIG_FILE
    told = read_config(codec_dir)
    check_fields(path, told, ENCODER_PARTS)
    weights, where = Weights(codec_dir), torch.device(device)
    with reading(path):
        module = load_submodule(
            CodecEncoderModule,
            told,
            ENCODER_PREFIX,
            weights,
            dtype=dtype,
            device=where,
            skip=(QUANTIZER,),
        )
        tables = tuple(
            weights.read(CODEBOOK.format(channel)).to(where, dtype)
            for channel in range(len(CODEBOOKS))
        )
        for size, table in zip(CODEBOOKS, tables, strict=True):
            if len(table) != size:
                raise FailedPrecondition(
                    f"{path}: a codebook has {len(table)} entries, but the language model "
                    f"expects {size}; {REMEDY}"
                )
        return SpeechEncoder(module, tables, told, group=GROUP_FRAMES)


class RecordingEncoder:
    """Encodes recordings to uint16 codes of shape [n, channels]. Can be called on any thread."""

    def __init__(self, encoder: SpeechEncoder) -> None:
        self._encoder = encoder

    @torch.inference_mode()
    def __call__(self, samples: Array) -> Codes:
        """Encode samples. Raises `InvalidArgument` if the recording is too short."""
        least = self._encoder.least_samples
        if len(samples) < least:
            raise InvalidArgument(
                f"has {len(samples)} samples at {SAMPLE_RATE_HZ} Hz; the minimum is {least}"
            )
        # Message arrays are read-only and torch warns about them, so the samples are copied.
        codes = self._encoder.codes(torch.tensor(samples, device=self._encoder.device))
        made: Codes = codes.cpu().numpy().astype("uint16")
        return made


def _warm_up(engine: SpeechTextEngine, slots: int, limit: int) -> None:
    """Warm up the engine, as described in `antiphon_services.lm.warm_up`.

    Raises `Internal` if the model does not generate anything.
    """
    speak_text(engine, INPUT, (TEXT, CODES), DEFAULT_SAMPLING, slots, limit - OTHER_ROWS)
