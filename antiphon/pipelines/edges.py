"""Edges that are used by several pipelines."""

from __future__ import annotations

from dataclasses import replace

from antiphon.pipelines.graph import CLIENT, SAMPLE, VARIES, Edge, TensorSpec
from antiphon.values.segment import Delivery

# A message costs 0.1 ms at each end, regardless of its size, and text passes through the gateway.
# If a stage generates tokens faster than this, several tokens are combined in one message. The
# resulting 25 messages per second are as many as a film has frames. The first token is never
# delayed.
TEXT_PACE_S = 0.040


def conversation_edge(consumer: str) -> Edge:
    """Return the `input` edge, which carries the client's conversation.

    The format is described in antiphon/values/conversation.py. A single chunk contains `messages`
    as JSON and the recordings as `audio.0`, `audio.1` and so on. It also contains `tools` and
    `template` as JSON, if there are any. In a live segment, the last recording is still in
    progress, and its `samples` follow in further chunks.
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


PIECE = "utf8"
"""The name of the `input` tensor that contains a piece of text. It is sent instead of `messages`.

A piece can be any part of the text's UTF-8 encoding, even if it ends in the middle of a character.
Together, the chunks of a segment make up the text. The last chunk is marked as `segment_finished`.
The generated output doesn't depend on how the text is split. Output for the beginning of the text
may be sent before the text is complete.
"""
PIECE_FIELD = f"input.{PIECE}"
"""The field name that is used in error messages about pieces."""


def spoken_edge(consumer: str) -> Edge:
    """Return the `input` edge of a stage that reads text aloud.

    The edge carries either a conversation that contains a single text or the pieces of a text.
    """
    edge = conversation_edge(consumer)
    piece = TensorSpec(PIECE, "uint8", (VARIES,), optional=True)
    return replace(edge, tensors=(*edge.tensors, piece))


def text_edge(producer: str) -> Edge:
    """Return the `text` edge, which carries the answer's tokens.

    If log probabilities are requested, the edge carries them as well.
    """
    return Edge(
        "text",
        producer,
        (CLIENT,),
        "token",
        (
            TensorSpec("ids", "int32", (VARIES,)),
            TensorSpec("utf8", "uint8", (VARIES,)),
            # The format is described in antiphon/wire/logprobs.py. There is an entry for each token
            # whose text begins in this chunk. These may be different tokens from those in `ids`.
            TensorSpec("logprob_ids", "int32", (VARIES, VARIES), optional=True),
            TensorSpec("logprobs", "float32", (VARIES, VARIES), optional=True),
            TensorSpec("logprob_sizes", "int32", (VARIES, VARIES), optional=True),
            TensorSpec("logprob_bytes", "uint8", (VARIES,), optional=True),
        ),
        counted_by="ids",
        pace_s=TEXT_PACE_S,
    )


def tool_calls_edge(producer: str) -> Edge:
    """Return the `tool_calls` edge, which carries the answer's function calls.

    The format is described in antiphon/wire/tool_calls.py. Pieces are sent as they are generated.
    The last piece of a call is sent once the call has been validated.
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
    """Return an edge for codec frames. They are grouped by the chunk policy and limited by credit.

    A frame consists of `groups` codes, or of `groups` floats if `dtype` is a float type.
    """
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


def whole_ids_edge(name: str, producer: str, consumer: str, unit: str) -> Edge:
    """Return an edge for token IDs whose consumer needs all of them before it can start."""
    return Edge(
        name,
        producer,
        (consumer,),
        unit,
        (TensorSpec(name, "uint16", (VARIES,)),),
        counted_by=name,
        delivery=Delivery.WHOLE,
    )


def audio_edge(producer: str, frames: str = "", dtype: str = "uint16") -> Edge:
    """Return the `audio` edge, which carries samples.

    If `frames` is set, it also carries the codec frames from which the samples were decoded.
    """
    samples = TensorSpec("samples", "float32", (VARIES,))
    decoded = (TensorSpec(frames, dtype, (VARIES, VARIES)),) if frames else ()
    return Edge(
        "audio",
        producer,
        (CLIENT,),
        SAMPLE,
        (samples, *decoded),
        counted_by="samples",
        governed=True,
    )


def image_edge(producer: str) -> Edge:
    """Return the `image` edge, which carries complete image files.

    The format is described in `antiphon.wire.images.image_parts`.
    """
    return Edge(
        "image",
        producer,
        (CLIENT,),
        "image",
        (
            TensorSpec("files", "uint8", (VARIES,), optional=True),
            TensorSpec("images", "int64", (VARIES, 2), optional=True),
        ),
        counted_by="images",
    )
