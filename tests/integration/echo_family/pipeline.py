"""The declaration that the distribution's entry point names."""

from __future__ import annotations

from antiphon.pipelines.graph import CLIENT, VARIES, Edge, Pipeline, StageSpec, TensorSpec

MESSAGES = TensorSpec("messages", "uint8", (VARIES,))
IDS, UTF8 = TensorSpec("ids", "int32", (VARIES,)), TensorSpec("utf8", "uint8", (VARIES,))
PIPELINE = Pipeline(
    name="echo",
    architectures=("EchoForConditionalGeneration",),
    stages=(StageSpec("echo"),),
    edges=(
        Edge("input", CLIENT, ("echo",), "message", (MESSAGES,), counted_by="messages"),
        Edge("text", "echo", (CLIENT,), "token", (IDS, UTF8), counted_by="ids"),
    ),
    folder="echo_family.stages",
)
