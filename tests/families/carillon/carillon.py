"""The declaration of a family that antiphon has never heard of: text rung on bells.

Audio alone, two stages, options of its own, and a second stage that can be primed. This file,
the folder beside it and an entry point are all that there is of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antiphon.pipelines.examples import conversation, random_codes
from antiphon.pipelines.graph import CLIENT, VARIES, Edge, Pipeline, StageSpec, TensorSpec
from antiphon.values.options import Option, OptionKind

Strokes = npt.NDArray[np.uint16]
"""[strokes, 2]: which bell, and the mood."""

COMPOSER, RINGER = "composer", "ringer"
SAMPLE_RATE_HZ = 8000
SAMPLES_PER_FRAME = 80

MOODS = ("major", "minor")
OPTIONS = (
    Option("mood", OptionKind.TEXT, "How it sounds.", choices=MOODS, instructs=True),
    Option("tempo", OptionKind.NUMBER, "Frames a letter.", least=1, most=4),
    Option(
        "echo",
        OptionKind.AUDIO,
        "A recording that still resounds when the first bell is rung.",
        sample_rate_hz=SAMPLE_RATE_HZ,
        max_s=2.0,
    ),
)

PIPELINE = Pipeline(
    name="carillon",
    architectures=("CarillonForRinging",),
    stages=(
        StageSpec(
            COMPOSER,
            samples=True,
            reads_aloud=True,
            options=OPTIONS,
            example=conversation("letter"),
        ),
        StageSpec(RINGER, example=random_codes("strokes")),
    ),
    edges=(
        Edge(
            "letter",
            CLIENT,
            (COMPOSER,),
            "message",
            (TensorSpec("messages", "uint8", (VARIES,)),),
            counted_by="messages",
        ),
        Edge(
            "strokes",
            COMPOSER,
            (RINGER,),
            "codec frame",
            (TensorSpec("codes", "uint16", (VARIES, 2)),),
            counted_by="codes",
            grouped=True,
            governed=True,
            primed=True,
            look_ahead=1,
        ),
        Edge(
            "audio",
            RINGER,
            (CLIENT,),
            "sample",
            (
                TensorSpec("samples", "float32", (VARIES,)),
                TensorSpec("codes", "uint16", (VARIES, 2)),
            ),
            counted_by="samples",
            governed=True,
        ),
    ),
    folder="carillon_stages",
)
