"""Loads the thinker of a Covo-Audio checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import WhisperConfig

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.covo_audio import CODE_ENTRIES, CODES, LICENCE, THINKER
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading
from antiphon.pipelines.generation_config import default_sampling
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon.values.sampling import Sampling
from antiphon_services.covo_audio.thinker.fields import PARTS, TEXT
from antiphon_services.covo_audio.thinker.front_end import WindowFrontEnd
from antiphon_services.covo_audio.thinker.module import (
    RecordingThinkerModule,
    ThinkerParts,
    WindowedTowers,
)
from antiphon_services.covo_audio.thinker.template import TEMPLATE
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.sampling import PenaltyWindow
from antiphon_services.stage.config_fields import check_fields, check_window
from antiphon_services.stage.engines import check_device, require_torch
from antiphon_services.stage.memory_plan import (
    StageMemory,
    StoredPart,
    decoder_memory,
    planned_limit,
)
from antiphon_services.text.chat import ChatTokenizer
from antiphon_services.text.detokenizer import Vocabulary
from antiphon_services.text.literal import load_tokenizer
from antiphon_services.thinker.intake import PromptIntake
from antiphon_services.thinker.prompt import Ids, PromptFactory
from antiphon_services.thinker.rows import no_positions
from antiphon_services.thinker.thinker_segment import Positions, ReplyCodes
from antiphon_services.thinker.torch_loading import TorchThinker, load_torch
from antiphon_services.vllm.media import MediaLimits

PLACEHOLDER, END_OF_TURN, END_OF_TEXT = "<|cAUDIO|>", "<|im_end|>", "<|endoftext|>"
PENALTY = 1.05
WINDOW = PenaltyWindow(8, PENALTY)
DEFAULT_SAMPLING = Sampling(
    temperature=0.0, top_k=50, top_p=0.9, repetition_penalty=PENALTY, seed=0, max_tokens=2048
)
"""The defaults from the vendor's example. In that example, the first answer is greedy, while later
answers use a temperature of 0.5.
"""
AUDIO_ONLY = MediaLimits(MediaLimits().audio, 0, 0)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordingIds:
    """The placeholder token IDs. The model does not support images or videos."""

    audio: int
    image: int = -1
    video: int = -1


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the thinker.

    Raises `FailedPrecondition` if the checkpoint cannot be read.
    """
    text = _parts(model_dir, read_config(model_dir)).text
    stored = StoredPart(Weights(model_dir))
    return decoder_memory(THINKER, config, text, stored, row=text.hidden_size)


def load(
    model_dir: Path,
    config: StageConfig,
    bucketing: Bucketing | None = None,
    *,
    prefill_rows: int | None = None,
) -> LoadedStage:
    """Load the language model, its encoder and the tokenizer, and warm up the stage.

    Raises `InvalidArgument` if a setting does not apply to this stage, and `FailedPrecondition` if
    the parts of the checkpoint do not match.
    """
    require_torch(THINKER, config)
    check_device(config)
    log.warning("%s: %s", model_dir, LICENCE)
    content = read_config(model_dir)
    check_fields(model_dir / CONFIG_FILE, content, PARTS)
    parts = _parts(model_dir, content)
    intake = load_intake(model_dir, config)
    stage = load_torch(
        THINKER,
        model_dir,
        config,
        intake,
        TorchThinker(
            RecordingThinkerModule,
            parts,
            tapped_layer=parts.text.num_hidden_layers,
            towers=WindowedTowers(),
            prefix="",
        ),
        media=AUDIO_ONLY,
        bucketing=bucketing,
        prefill_rows=prefill_rows,
    )
    sampling = default_sampling(model_dir, THINKER, DEFAULT_SAMPLING)
    return replace(stage, facts=replace(stage.facts, default_sampling=sampling))


def load_intake(model_dir: Path, config: StageConfig) -> PromptIntake:
    """Load the tokenizer and the front end for recordings.

    Raises `FailedPrecondition` if they cannot be loaded.
    """
    path = model_dir / CONFIG_FILE
    content = read_config(model_dir)
    text = _parts(model_dir, content).text
    limit = planned_limit(memory(model_dir, config))
    check_window(path, TEXT.path, text, limit, limited=THINKER)
    tokenizer = load_tokenizer(model_dir, registered="Qwen2Tokenizer")
    ids, first = tokenizer.get_vocab(), int(content["audio_token_index"])
    for token in (PLACEHOLDER, END_OF_TURN, END_OF_TEXT):
        if token not in ids:
            raise FailedPrecondition(f"{model_dir}: the tokenizer has no {token}; {REMEDY}")
    if not max(ids.values()) + 1 == first == text.vocab_size - CODE_ENTRIES:
        raise FailedPrecondition(
            f"{path}: audio_token_index is {first}, but the tokenizer has "
            f"{max(ids.values()) + 1} IDs and the model {text.vocab_size}, including "
            f"{CODE_ENTRIES} codes at the end; {REMEDY}"
        )
    return PromptIntake(
        PromptFactory(
            chat=ChatTokenizer(tokenizer, TEMPLATE),
            audio=WindowFrontEnd(config.memory.kept_recording_bytes),
            special=RecordingIds(ids[PLACEHOLDER]),
            context_limit=limit,
        ),
        Vocabulary(tokenizer),
        stop_id=ids[END_OF_TURN],
        row_positions=_no_rows,
        speech=ReplyCodes(CODES, first, ids[END_OF_TEXT]),
        window=WINDOW,
    )


def _no_rows(ids: Ids) -> Positions:
    return no_positions()


def _parts(model_dir: Path, content: dict[str, Any]) -> ThinkerParts:
    with reading(model_dir / CONFIG_FILE):
        text: Any = Qwen2Config.from_dict(content["llm_config"])
        encoder: Any = WhisperConfig.from_dict(content["encoder_config"])
        return ThinkerParts(text, encoder, int(content["adapter_downsample"]))
