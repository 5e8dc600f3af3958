"""CosyVoice3 (`FunAudioLLM/Fun-CosyVoice3-0.5B-2512`): talker -> code2wav.

This module defines what its two stages agree on. The reference is the vendor's repository,
FunAudioLLM/CosyVoice, with `stream=False`. The talker reads the text itself, so there is no thinker
and no text output. A voice either comes with the checkpoint or is cloned from a reference
recording.

A long text is spoken in several utterances. Each of them has a flow of its own, as described at
`FIRST`. If a text is sent to the talker in pieces, it is spoken as a single utterance. See `PIECE`
in antiphon/pipelines/edges.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from antiphon.pipelines.edges import audio_edge, frames_edge, spoken_edge
from antiphon.pipelines.examples import (
    ExampleSettings,
    MadeUp,
    TimedChunk,
    conversation,
    ending,
    random_codes,
)
from antiphon.pipelines.graph import (
    VARIES,
    CheckpointFiles,
    Edge,
    Pipeline,
    StageSpec,
    TensorSpec,
)
from antiphon.values.chunk import Chunk
from antiphon.values.options import Option, OptionKind

TALKER, CODE2WAV = "talker", "code2wav"
INPUT, VOICE, CODES, AUDIO = "input", "speaker_prompt", "codes", "audio"

MODEL_FILE = "cosyvoice3.yaml"

SAMPLE_RATE_HZ = 24_000
"""The sample rate of reference recordings and of generated audio."""

MOST_REFERENCE_S = 30.0

CODE_RATE_HZ = 25.0
SPEECH_IDS = 6561
FIRST = SPEECH_IDS
"""The offset that is added to the first code of every utterance after the first one of a segment.

All codes are therefore below twice `SPEECH_IDS`.
"""

MOST_CODES = 7500
"""The maximum number of codes of an utterance, including its reference recording.

This is the length of the noise, which corresponds to 300 seconds.
"""

MEL_BINS = 80
FRAMES_PER_CODE = 2
SPEAKER_WIDTH = 192

LEAST_CODES = "least_codes_per_token"
MOST_LEAST_CODES = 10.0
"""The maximum for `LEAST_CODES`. It is half of the limit at which every utterance ends."""

OPTIONS = (
    Option(
        "instruction",
        OptionKind.TEXT,
        "A description of how to speak. Requires reference_audio, and excludes reference_text.",
        instructs=True,
    ),
    Option(
        "reference_audio",
        OptionKind.AUDIO,
        "A recording of the voice to use.",
        sample_rate_hz=SAMPLE_RATE_HZ,
        max_s=MOST_REFERENCE_S,
    ),
    Option(
        "reference_text",
        OptionKind.TEXT,
        "The transcript of the recording, in the language of the text. It makes the voice more "
        "similar.",
    ),
    Option(
        LEAST_CODES,
        OptionKind.NUMBER,
        "The minimum number of codes for each text token. A code lasts 40 ms. Defaults to 0, "
        "as in the vendor's code, which was meant to use 2.",
        most=MOST_LEAST_CODES,
    ),
)


def code2wav_example(settings: ExampleSettings) -> MadeUp:
    """Return a random voice with a prompt of one second, and random codes for one utterance."""
    one_utterance = type(settings.description)()
    one_utterance.CopyFrom(settings.description)
    one_utterance.code_entries = SPEECH_IDS
    codes = random_codes(CODES)(replace(settings, description=one_utterance))
    count = round(CODE_RATE_HZ)

    def made_up(number: int) -> Sequence[TimedChunk]:
        draw = np.random.default_rng(number)
        voice = Chunk(
            "",
            VOICE,
            tensors={
                "speaker": draw.standard_normal((1, SPEAKER_WIDTH), np.float32),
                "prompt_codes": draw.integers(SPEECH_IDS, size=count, dtype=np.int32),
                "prompt_mel": draw.standard_normal((FRAMES_PER_CODE * count, MEL_BINS), np.float32),
            },
        )
        return [TimedChunk(0.0, ending(voice)), *codes(number)]

    return made_up


PIPELINE = Pipeline(
    name="cosyvoice3",
    architectures=(),
    marker=MODEL_FILE,
    files=(
        CheckpointFiles(
            # All weights are in llm.pt, so the stages read none from the language model's folder.
            folders=(),
            others=(
                "CosyVoice-BlankEN/*.json",
                "CosyVoice-BlankEN/*.txt",
                MODEL_FILE,
                "llm.pt",
                "flow.pt",
                "hift.pt",
                "spk2info.pt",
                "campplus.onnx",
                "speech_tokenizer_v3.onnx",
            ),
        ),
    ),
    stages=(
        StageSpec(
            TALKER,
            samples=True,
            reads_aloud=True,
            options=OPTIONS,
            example=conversation(INPUT),
        ),
        # This stage supports only float32, as does the reference on a CPU.
        StageSpec(CODE2WAV, example=code2wav_example, dtype="float32"),
    ),
    edges=(
        spoken_edge(TALKER),
        # A single chunk that precedes all codes. If a voice has no prompt, its codes and mel frames
        # are empty.
        Edge(
            VOICE,
            TALKER,
            (CODE2WAV,),
            "voice",
            (
                TensorSpec("speaker", "float32", (1, SPEAKER_WIDTH)),
                TensorSpec("prompt_codes", "int32", (VARIES,)),
                TensorSpec("prompt_mel", "float32", (VARIES, MEL_BINS)),
            ),
            counted_by="speaker",
        ),
        frames_edge(CODES, TALKER, CODE2WAV, rate_hz=CODE_RATE_HZ, groups=1),
        audio_edge(CODE2WAV, CODES),
    ),
)
