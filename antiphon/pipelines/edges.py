"""Edges that several pipelines share."""

from __future__ import annotations

from dataclasses import replace

from antiphon.pipelines.graph import CLIENT, SAMPLE, VARIES, Edge, TensorSpec

# A message costs 0.1 ms at each end whatever its size, and text passes through the gateway. A stage
# that generates tokens faster than this sends several per message. 25 messages per second match the
# frame rate of a film. The first token is never delayed.
TEXT_PACE_S = 0.040


def conversation_edge(consumer: str) -> Edge:
    """Return `input`, the client's conversation: see antiphon/values/conversation.py.

    One chunk has `messages` (JSON), the recordings as `audio.0`, `audio.1`, ..., and `tools` and
    `template` (JSON) if there are any. In a live segment the last recording is still in progress,
    and its `samples` follow.
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
"""Tensor of `input` with a piece of a text, instead of `messages`: any bytes of its UTF-8.

The chunks of a segment make up the text, up to the one that is `segment_finished`. What is made of
it does not depend on how the text is cut, and its beginning may be sent before the text ends."""


def spoken_edge(consumer: str) -> Edge:
    """Return `input`: a conversation with one text, or the pieces of a text."""
    edge = conversation_edge(consumer)
    piece = TensorSpec(PIECE, "uint8", (VARIES,), optional=True)
    return replace(edge, tensors=(*edge.tensors, piece))


def text_edge(producer: str) -> Edge:
    """Return `text`: the answer's tokens, with their log probabilities if requested."""
    return Edge(
        "text",
        producer,
        (CLIENT,),
        "token",
        (
            TensorSpec("ids", "int32", (VARIES,)),
            TensorSpec("utf8", "uint8", (VARIES,)),
            # See antiphon/wire/logprobs.py. For the tokens whose text begins in this chunk, which
            # may differ from `ids`.
            TensorSpec("logprob_ids", "int32", (VARIES, VARIES), optional=True),
            TensorSpec("logprobs", "float32", (VARIES, VARIES), optional=True),
            TensorSpec("logprob_sizes", "int32", (VARIES, VARIES), optional=True),
            TensorSpec("logprob_bytes", "uint8", (VARIES,), optional=True),
        ),
        counted_by="ids",
        pace_s=TEXT_PACE_S,
    )


def tool_calls_edge(producer: str) -> Edge:
    """Return `tool_calls`, the answer's function calls: see antiphon/wire/tool_calls.py.

    Pieces are sent as they are generated. The last piece of a call is sent once the call is known
    to be valid.
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
    """Return an edge of codec frames, grouped by the chunk policy and governed by credit.

    A frame has `groups` codes, or floats if `dtype` is a float type.
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


def audio_edge(producer: str, frames: str, dtype: str = "uint16") -> Edge:
    """Return `audio`: the samples, with the codec frames that they were decoded from."""
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


def image_edge(producer: str) -> Edge:
    """Return `image`: whole image files; see `antiphon.wire.images.image_parts`."""
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
