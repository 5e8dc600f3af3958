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
    """One segment, or `choices` of them: the conversation, the wanted outputs, and the settings.

    An empty `model` means the only one; empty `outputs` mean all outputs of the model. An order
    that `reads_aloud` has its message spoken unchanged. `tools`, `tool_choice` and `template` are
    those of `Conversation`.

    `sampling` is by stage role, with `INPUT_STAGE` for the stage that reads the messages.
    `delivery` applies to every edge; None means that of the deployment. `options` are by name. With
    `recordings_alone`, the encoding of each recording is independent of the others. An
    `instruction` is the value of the option that describes the speech, whatever its name.

    `timeout_s` is the client's remaining timeout for the whole answer, and `start_within_s` for its
    start. `drawn_seed` is the seed of stages without one in `sampling`; with it a repeated order
    has the same answer. `field_names` map names in errors to the client's names: "audio.voice" for
    "voice", for example. `key` is the name of the caller's API key, and `priority` is at most that
    key's, once it is known.
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
