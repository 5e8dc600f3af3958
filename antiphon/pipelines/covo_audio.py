"""Covo-Audio (`tencent/Covo-Audio-Chat`): thinker -> code2wav.

What its two stages must agree on and nothing else. Reference: the vendor's repository,
Tencent/Covo-Audio. One language model, the thinker, reads recordings, and writes text and codes of
speech in one stream of ids. The text goes to the client, the codes go to code2wav. Code2wav
generates the audio of a whole answer from noise, which is keyed by the seed of its sampling.

The vendor's licence allows academic use only.
"""

from __future__ import annotations

from antiphon.pipelines.edges import audio_edge, conversation_edge, frames_edge, text_edge
from antiphon.pipelines.examples import conversation, random_codes
from antiphon.pipelines.graph import CheckpointFiles, Pipeline, StageSpec

THINKER, CODE2WAV = "thinker", "code2wav"
INPUT, TEXT, CODES, AUDIO = "input", "text", "codes", "audio"

TOKEN2WAV_FOLDER = "token2wav"
DECODER_FILE, STATISTICS_FILE = "model.pt", "global_mean_var.npy"
"""Files of code2wav in `TOKEN2WAV_FOLDER`: its weights, and mean and variance of latents."""
VOICE_FOLDER = "prompt"
"""A folder in `TOKEN2WAV_FOLDER` with the voice; the released checkpoint lacks it."""

SAMPLE_RATE_HZ = 24_000
"""Of recordings and of the audio that is generated."""
CODE_RATE_HZ = 25.0
CODE_ENTRIES = 16_384
"""The vocabulary of the language model ends with these ids."""
LATENTS_PER_CODE = 4

LICENCE = "Covo-Audio's licence allows academic use only"

PIPELINE = Pipeline(
    name="covo_audio",
    architectures=("CovoAudioForCausalLM",),
    files=(
        CheckpointFiles(
            others=(
                f"{TOKEN2WAV_FOLDER}/{DECODER_FILE}",
                f"{TOKEN2WAV_FOLDER}/{STATISTICS_FILE}",
                f"{TOKEN2WAV_FOLDER}/{VOICE_FOLDER}/*.npy",
            ),
        ),
    ),
    stages=(
        StageSpec(THINKER, samples=True, example=conversation(INPUT)),
        # In float32 alone, as the vendor's code does.
        StageSpec(CODE2WAV, example=random_codes(CODES), dtype="float32"),
    ),
    edges=(
        conversation_edge(THINKER),
        text_edge(THINKER),
        frames_edge(CODES, THINKER, CODE2WAV, rate_hz=CODE_RATE_HZ, groups=1),
        audio_edge(CODE2WAV, CODES),
    ),
)
