"""Serves speech models as microservices, and talks to them.

Importing this package imports nothing else: the names below load when they are
first used, so that tools and servers which need only a part stay small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient, AsyncGeneration
    from antiphon.client.events import (
        AudioDelta,
        Event,
        Finished,
        ModelInfo,
        ServerInfo,
        StageReport,
        TextDelta,
        Usage,
    )
    from antiphon.client.reply import Reply
    from antiphon.client.request import GenerateOptions, Image, Message, Video
    from antiphon.client.sync import Client, Generation
    from antiphon.errors import AntiphonError
    from antiphon.logprobs import TokenLogprob
    from antiphon.sampling import SamplingRequest
    from antiphon.segment import ChunkPolicy, Delivery, FinishReason

_MODULES = {
    "AntiphonError": "antiphon.errors",
    "AsyncClient": "antiphon.client.aio",
    "AsyncGeneration": "antiphon.client.aio",
    "AudioDelta": "antiphon.client.events",
    "ChunkPolicy": "antiphon.segment",
    "Client": "antiphon.client.sync",
    "Delivery": "antiphon.segment",
    "Event": "antiphon.client.events",
    "FinishReason": "antiphon.segment",
    "Finished": "antiphon.client.events",
    "GenerateOptions": "antiphon.client.request",
    "Generation": "antiphon.client.sync",
    "Image": "antiphon.client.request",
    "Message": "antiphon.client.request",
    "ModelInfo": "antiphon.client.events",
    "Reply": "antiphon.client.reply",
    "SamplingRequest": "antiphon.sampling",
    "ServerInfo": "antiphon.client.events",
    "StageReport": "antiphon.client.events",
    "TextDelta": "antiphon.client.events",
    "TokenLogprob": "antiphon.logprobs",
    "Usage": "antiphon.client.events",
    "Video": "antiphon.client.request",
}

__all__ = (
    "AntiphonError",
    "AsyncClient",
    "AsyncGeneration",
    "AudioDelta",
    "ChunkPolicy",
    "Client",
    "Delivery",
    "Event",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "Generation",
    "Image",
    "Message",
    "ModelInfo",
    "Reply",
    "SamplingRequest",
    "ServerInfo",
    "StageReport",
    "TextDelta",
    "TokenLogprob",
    "Usage",
    "Video",
)


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
