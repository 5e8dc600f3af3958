"""Edges that pipelines have alike."""

from __future__ import annotations

from antiphon.pipelines.graph import CLIENT, SAMPLE, VARIES, Edge, TensorSpec

# A message costs a tenth of a millisecond at each end, whatever it carries, and text passes the
# gateway: a stage that makes tokens faster than this lets them share one. 25 times a second is as
# often as a film changes its picture, and the first token never waits.
TEXT_PACE_S = 0.040


def conversation_edge(consumer: str) -> Edge:
    """`input`, what the client says: see antiphon/values/conversation.py.

    One chunk carries `messages` (JSON) and, as `audio.0`, `audio.1`, ..., the recordings;
    `tools` and `template` (JSON) if there are any. In a live segment the last of the recordings is
    still being made, and `samples` of it follow.
    """
    return Edge(
        "input",
        CLIENT,
        (consumer,),
        "message",
        (
            TensorSpec("messages", "uint8", (VARIES,), optional=True),
            TensorSpec("tools", "uint8", (VARIES,), optional=True),
            TensorSpec("samples", "float32", (VARIES,), optional=True),
            TensorSpec("template", "uint8", (VARIES,), optional=True),
        ),
        counted_by="messages",
    )


def text_edge(producer: str) -> Edge:
    """`text`, the answer's tokens, and how likely they were if that is asked for."""
    return Edge(
        "text",
        producer,
        (CLIENT,),
        "token",
        (
            TensorSpec("ids", "int32", (VARIES,)),
            TensorSpec("utf8", "uint8", (VARIES,)),
            # See antiphon/wire/logprobs.py. Of the tokens whose text begins in this chunk,
            # which need not be those of `ids`.
            TensorSpec("logprob_ids", "int32", (VARIES, VARIES), optional=True),
            TensorSpec("logprobs", "float32", (VARIES, VARIES), optional=True),
            TensorSpec("logprob_sizes", "int32", (VARIES, VARIES), optional=True),
            TensorSpec("logprob_bytes", "uint8", (VARIES,), optional=True),
        ),
        counted_by="ids",
        pace_s=TEXT_PACE_S,
    )


def tool_calls_edge(producer: str) -> Edge:
    """`tool_calls`, the functions that the answer calls: see antiphon/wire/tool_calls.py.

    They leave as they are written; the last piece of each when it is known to be a call of one that
    there is.
    """
    return Edge(
        "tool_calls",
        producer,
        (CLIENT,),
        "piece of a call",
        (
            TensorSpec("utf8", "uint8", (VARIES,)),
            TensorSpec("sizes", "int32", (VARIES, 3)),
        ),
        counted_by="sizes",
        pace_s=TEXT_PACE_S,
    )


def frames_edge(
    name: str,
    producer: str,
    consumer: str,
    *,
    rate_hz: float,
    groups: int = VARIES,
    primed: bool = False,
    dtype: str = "uint16",
) -> Edge:
    """Codec frames, of so many codes each, or of floats if `dtype` says so: grouped by the chunk
    policy, and governed by credit."""
    return Edge(
        name,
        producer,
        (consumer,),
        "codec frame",
        (TensorSpec(name, dtype, (VARIES, groups)),),
        counted_by=name,
        grouped=True,
        governed=True,
        rate_hz=rate_hz,
        primed=primed,
    )


def audio_edge(producer: str, frames: str, dtype: str = "uint16") -> Edge:
    """`audio`, the samples with the codec frames that they were decoded from."""
    return Edge(
        "audio",
        producer,
        (CLIENT,),
        SAMPLE,
        (
            TensorSpec("samples", "float32", (VARIES,)),
            TensorSpec(frames, dtype, (VARIES, VARIES)),
        ),
        counted_by="samples",
        governed=True,
    )
