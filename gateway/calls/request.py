"""A request for text and speech, free of any protocol."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from antiphon.conversation import Conversation
from antiphon.errors import AntiphonError
from antiphon.sampling import SamplingRequest
from antiphon.segment import ChunkPolicy, Delivery

TEXT, AUDIO = "text", "audio"
"""The edges to the client: what a request can ask for."""

SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """One turn: what was said, what is wanted, and how to make it.

    `sampling` is by stage role. `delivery` goes for every edge; None leaves the
    deployment's. `timeout_s` is what the client still waits. `field_by_input` has the
    client's path of each recording, image and video, by its name in the conversation.
    """

    conversation: Conversation
    outputs: frozenset[str]
    voice: str = ""
    sampling: Mapping[str, SamplingRequest] = field(default_factory=dict)
    delivery: Delivery | None = None
    chunk_policy: ChunkPolicy | None = None
    timeout_s: float = math.inf
    field_by_input: Mapping[str, str] = field(default_factory=dict)


def name_field(error: AntiphonError, field_by_input: Mapping[str, str]) -> None:
    """Let a stage's error name a recording, image or video as the client knows it."""
    path = field_by_input.get(error.field)
    if path is not None:
        error.message = error.message.replace(error.field, path, 1)
        error.args, error.field = (error.message,), path


def with_seeds(
    sampling: Mapping[str, SamplingRequest], roles: tuple[str, ...], input_role: str
) -> dict[str, SamplingRequest]:
    """Sampling for every role, each with a seed.

    A role without one takes the input stage's, and that one is drawn when the
    client gave none: all stages of a request then share it.
    """
    given = sampling.get(input_role, SamplingRequest()).seed
    shared = secrets.randbits(SEED_BITS) if given is None else given
    complete = {}
    for role in roles:
        settings = sampling.get(role, SamplingRequest())
        complete[role] = settings if settings.seed is not None else replace(settings, seed=shared)
    return complete
