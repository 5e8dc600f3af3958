"""Ming-flash-omni (`inclusionAI/Ming-flash-omni-2.0`): thinker -> talker -> code2wav.

This module defines only what its stages must agree on. The reference for the thinker is the
vendor's repository, inclusionAI/Ming. The thinker reads text, recordings and images, and writes
text. The talker speaks this text sentence by sentence, without reading anything else from the
thinker. The talker and code2wav are the same stages as in `antiphon.pipelines.ming_tts`, which
serves a checkpoint without the thinker's weights.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.pipelines import ming_tts
from antiphon.pipelines.edges import conversation_edge, text_edge
from antiphon.pipelines.examples import conversation, written_text
from antiphon.pipelines.graph import CLIENT, TORCH_ONLY, CheckpointFiles, Pipeline, StageSpec

THINKER, TALKER, CODE2WAV = "thinker", ming_tts.TALKER, ming_tts.CODE2WAV
TEXT = "text"

THINKER_WEIGHTS = ("model.safetensors.index.json", "model.safetensors")

REQUIRED_FILES = "tokenizer.json", "preprocessor_config.json"
SOURCE = "https://github.com/inclusionAI/Ming"
"""The vendor's repository, which contains `REQUIRED_FILES`."""

_TALKER_FILES = ming_tts.PIPELINE.files[0]

PIPELINE = Pipeline(
    name="ming_flash_omni",
    architectures=(ming_tts.FLASH_ARCHITECTURE,),
    # Without the thinker's weights, a checkpoint is served by `ming_tts`.
    needs=THINKER_WEIGHTS,
    files=(
        CheckpointFiles(
            folders=("", *_TALKER_FILES.folders),
            others=_TALKER_FILES.others,
            required=REQUIRED_FILES,
            source=SOURCE,
        ),
    ),
    chunk_policy=ming_tts.PIPELINE.chunk_policy,
    stages=(
        StageSpec(THINKER, engines=TORCH_ONLY, samples=True, example=conversation("input")),
        StageSpec(
            TALKER,
            engines=TORCH_ONLY,
            samples=True,
            options=ming_tts.OPTIONS,
            example=written_text(TEXT),
        ),
        ming_tts.PIPELINE.stage(CODE2WAV),
    ),
    edges=(
        conversation_edge(THINKER),
        replace(text_edge(THINKER), consumers=(CLIENT, TALKER)),
        ming_tts.PIPELINE.edge(ming_tts.LATENTS),
        ming_tts.PIPELINE.edge(ming_tts.AUDIO),
    ),
)
