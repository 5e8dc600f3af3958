"""The declaration of a family that draws: a text and an image, in steps that are reported.

The sketcher answers in words and hands lines to the painter, all at once. The painter takes one
step for each of `steps`, and its image depends on the lines alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antiphon.pipelines.edges import conversation_edge, image_edge, text_edge
from antiphon.pipelines.examples import conversation
from antiphon.pipelines.graph import VARIES, Edge, Pipeline, StageSpec, TensorSpec
from antiphon.values.options import DIALOGUE, IMAGE, TASK, Option, OptionKind
from antiphon.values.segment import Delivery

Lines = npt.NDArray[np.uint16]
"""[lines]: grey values."""

SKETCHER, PAINTER = "sketcher", "painter"
SIZES = ("16x16", "32x16")
TASKS = Option(TASK, OptionKind.TEXT, "An image alone has no words.", choices=(DIALOGUE, IMAGE))
SIZE = Option("size", OptionKind.TEXT, "Width and height in pixels.", choices=SIZES)
STEPS = Option("steps", OptionKind.NUMBER, "Steps of the painter.", least=1, most=1000)
UNTIL = Option("until", OptionKind.TEXT, "The painter's first step lasts until this file exists.")

PIPELINE = Pipeline(
    name="easel",
    architectures=("EaselForDrawing",),
    stages=(
        StageSpec(SKETCHER, samples=True, options=(TASKS,), example=conversation("input")),
        StageSpec(PAINTER, options=(SIZE, STEPS, UNTIL)),
    ),
    edges=(
        conversation_edge(SKETCHER),
        text_edge(SKETCHER),
        Edge(
            "lines",
            SKETCHER,
            (PAINTER,),
            "line",
            (TensorSpec("greys", "uint16", (VARIES,)),),
            counted_by="greys",
            delivery=Delivery.WHOLE,
        ),
        image_edge(PAINTER),
    ),
    folder="easel_stages",
)
