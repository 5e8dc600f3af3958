"""Covo-Audio (`tencent/Covo-Audio-Chat`): thinker -> code2wav.

This module defines only what its two stages must agree on. The reference is the vendor's
repository, Tencent/Covo-Audio. A single language model, the thinker, reads recordings and writes
text and speech codes into one stream of tokens. The text is sent to the client, and the codes are
sent to code2wav, which generates the audio of a complete answer from noise. The seed in the
sampling settings determines the noise.

The vendor's license only permits academic use.
"""

from __future__ import annotations

from antiphon.pipelines.edges import audio_edge, conversation_edge, frames_edge, text_edge
from antiphon.pipelines.examples import conversation, random_codes
from antiphon.pipelines.graph import TORCH_ONLY, CheckpointFiles, Pipeline, StageSpec

THINKER, CODE2WAV = "thinker", "code2wav"
INPUT, TEXT, CODES, AUDIO = "input", "text", "codes", "audio"

TOKEN2WAV_FOLDER = "token2wav"
DECODER_FILE, STATISTICS_FILE = "model.pt", "global_mean_var.npy"
"""The code2wav files in `TOKEN2WAV_FOLDER`. They contain the weights of code2wav and the mean and
variance of the latents.
"""
VOICE_FOLDER = "prompt"
"""A folder in `TOKEN2WAV_FOLDER` that contains the voice. The released checkpoint does not include
it.
"""

SAMPLE_RATE_HZ = 24_000
"""The sample rate of recordings and of generated audio."""
CODE_RATE_HZ = 25.0
CODE_ENTRIES = 16_384
"""The number of code IDs. They are at the end of the language model's vocabulary."""

LICENCE = "the license of Covo-Audio only allows academic use"

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
        StageSpec(THINKER, engines=TORCH_ONLY, samples=True, example=conversation(INPUT)),
        # Like the vendor's code, this stage supports only float32.
        StageSpec(CODE2WAV, engines=TORCH_ONLY, example=random_codes(CODES), dtype="float32"),
    ),
    edges=(
        conversation_edge(THINKER),
        text_edge(THINKER),
        frames_edge(CODES, THINKER, CODE2WAV, rate_hz=CODE_RATE_HZ, groups=1),
        audio_edge(CODE2WAV, CODES),
    ),
)
