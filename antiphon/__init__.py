"""Serves speech models as microservices, and talks to them.

Importing this package imports nothing else: the names below load when they are
first used, so that tools and servers which need only a part stay small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient, AsyncGeneration
    from antiphon.client.connection import Tls
    from antiphon.client.events import (
        AudioDelta,
        Event,
        Finished,
        FunctionCallDelta,
        ImageDelta,
        MadeImage,
        ModelInfo,
        ModelOption,
        ServerInfo,
        StageReport,
        TextDelta,
        Usage,
    )
    from antiphon.client.reply import Reply
    from antiphon.client.request import GenerateOptions, Image, Message, Video
    from antiphon.client.retrying import Retry
    from antiphon.client.sync import Client, Generation
    from antiphon.client.tools import Function, FunctionCall
    from antiphon.errors import (
        AntiphonError,
        Cancelled,
        DataLoss,
        DeadlineExceeded,
        ErrorCode,
        FailedPrecondition,
        Internal,
        InvalidArgument,
        NotFound,
        NotImplementedYet,
        ResourceExhausted,
        Unavailable,
    )
    from antiphon.logprobs import TokenLogprob
    from antiphon.sampling import SamplingRequest
    from antiphon.segment import ChunkPolicy, Delivery, FinishReason
    from antiphon.version import __version__

_MODULES = {
    "AntiphonError": "antiphon.errors",
    "AsyncClient": "antiphon.client.aio",
    "AsyncGeneration": "antiphon.client.aio",
    "AudioDelta": "antiphon.client.events",
    "Cancelled": "antiphon.errors",
    "ChunkPolicy": "antiphon.segment",
    "Client": "antiphon.client.sync",
    "DataLoss": "antiphon.errors",
    "DeadlineExceeded": "antiphon.errors",
    "Delivery": "antiphon.segment",
    "ErrorCode": "antiphon.errors",
    "Event": "antiphon.client.events",
    "FailedPrecondition": "antiphon.errors",
    "FinishReason": "antiphon.segment",
    "Finished": "antiphon.client.events",
    "Function": "antiphon.client.tools",
    "FunctionCall": "antiphon.client.tools",
    "FunctionCallDelta": "antiphon.client.events",
    "GenerateOptions": "antiphon.client.request",
    "Generation": "antiphon.client.sync",
    "Image": "antiphon.client.request",
    "ImageDelta": "antiphon.client.events",
    "Internal": "antiphon.errors",
    "InvalidArgument": "antiphon.errors",
    "MadeImage": "antiphon.client.events",
    "Message": "antiphon.client.request",
    "ModelInfo": "antiphon.client.events",
    "ModelOption": "antiphon.client.events",
    "NotFound": "antiphon.errors",
    "NotImplementedYet": "antiphon.errors",
    "Reply": "antiphon.client.reply",
    "ResourceExhausted": "antiphon.errors",
    "Retry": "antiphon.client.retrying",
    "SamplingRequest": "antiphon.sampling",
    "ServerInfo": "antiphon.client.events",
    "StageReport": "antiphon.client.events",
    "TextDelta": "antiphon.client.events",
    "Tls": "antiphon.client.connection",
    "TokenLogprob": "antiphon.logprobs",
    "Unavailable": "antiphon.errors",
    "Usage": "antiphon.client.events",
    "Video": "antiphon.client.request",
    "__version__": "antiphon.version",
}

__all__ = (
    "AntiphonError",
    "AsyncClient",
    "AsyncGeneration",
    "AudioDelta",
    "Cancelled",
    "ChunkPolicy",
    "Client",
    "DataLoss",
    "DeadlineExceeded",
    "Delivery",
    "ErrorCode",
    "Event",
    "FailedPrecondition",
    "FinishReason",
    "Finished",
    "Function",
    "FunctionCall",
    "FunctionCallDelta",
    "GenerateOptions",
    "Generation",
    "Image",
    "ImageDelta",
    "Internal",
    "InvalidArgument",
    "MadeImage",
    "Message",
    "ModelInfo",
    "ModelOption",
    "NotFound",
    "NotImplementedYet",
    "Reply",
    "ResourceExhausted",
    "Retry",
    "SamplingRequest",
    "ServerInfo",
    "StageReport",
    "TextDelta",
    "Tls",
    "TokenLogprob",
    "Unavailable",
    "Usage",
    "Video",
    "__version__",
)


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
