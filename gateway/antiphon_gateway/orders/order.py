"""What a client asks for, whatever its protocol: the one shape between a body and a segment."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon.values.conversation import ConversationMessage, TextPart, ToolChoice
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import ChunkPolicy, Delivery
from antiphon.values.template import TemplateValue
from antiphon_gateway.admission.priority import Priority
from antiphon_gateway.media.attachments import Attachments
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.media.options_in import OptionInput
from antiphon_gateway.media.pcm_recording import PcmRecording

SEED_BITS = 63


def draw_seed() -> int:
    """A seed for those who gave none."""
    return secrets.randbits(SEED_BITS)


@dataclass(frozen=True, slots=True)
class Order:
    """One segment, or `choices` of them: what was said, what is wanted, and how to make it.

    An empty `model` is the only one; empty `outputs` are all that it makes. One that `reads_aloud`
    wants its message spoken as it is. `tools`, `tool_choice` and `template` are
    those of `Conversation`.
    `sampling` is by stage role, `INPUT_STAGE` for the one that
    reads the messages. `delivery` goes for every edge; None leaves the deployment's. `options` are
    by name; with `recordings_alone` what is heard of a recording depends on none of the others;
    an `instruction` is the value of the one that instructs, whatever its name.
    `timeout_s` is what the client still waits for all of it, `start_within_s` for the first of it.
    `drawn_seed` is that of stages for which `sampling` has none: with it the same order is answered
    alike when it is asked once more.
    `field_names` are the client's names of what errors call otherwise: "audio.voice" for "voice",
    for example.
    `key` is the name of whoever asks, and `priority` is at most that key's, once it is known.
    """

    messages: tuple[ConversationMessage, ...]
    attachments: Attachments = field(default_factory=Attachments)
    model: str = ""
    outputs: frozenset[str] = frozenset()
    reads_aloud: bool = False
    voice: str = ""
    sampling: Mapping[str, SamplingRequest] = field(default_factory=dict)
    delivery: Delivery | None = None
    chunk_policy: ChunkPolicy | None = None
    options: Mapping[str, OptionInput] = field(default_factory=dict)
    instruction: str | None = None
    choices: int = 1
    recordings_alone: bool = False
    timeout_s: float = math.inf
    start_within_s: float = math.inf
    field_names: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    template: Mapping[str, TemplateValue] = field(default_factory=dict)
    drawn_seed: int = field(default_factory=draw_seed, compare=False)
    key: str = field(default="", compare=False)
    priority: Priority = field(default=Priority.HIGH, compare=False)

    @property
    def size_bytes(self) -> int:
        """About how much of what its client sent it holds."""
        parts = (part for message in self.messages for part in message.parts)
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        given = self.attachments
        recordings = [each.data for each in given.recordings]
        files = [each.data for each in (*given.images, *given.videos)]
        options = [
            each.data if isinstance(each, Recording) else each for each in self.options.values()
        ]
        calls = [call.arguments for message in self.messages for call in message.tool_calls]
        held = [*texts, *calls, *self.tools, *recordings, *files, *options]
        size = sum(len(each) for each in held if isinstance(each, str | bytes))
        return size + sum(len(each.pcm16) for each in recordings if isinstance(each, PcmRecording))
