"""A client's request in a form that doesn't depend on the protocol. An order is created from the
request body and is then used to create a segment.
"""

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
    """Return a seed for a request that doesn't have one."""
    return secrets.randbits(SEED_BITS)


def names_of_text(field_name: str) -> dict[str, str]:
    """Return the `field_names` of an order whose only message is the text in the client's field
    `field_name`.
    """
    return {"messages": field_name, "messages[0]": field_name}


@dataclass(frozen=True, slots=True)
class Order:
    """A request for one or more segments. It contains the conversation, the outputs and the
    settings. `choices` is the number of segments.

    If `model` is empty, the served model is used. If `outputs` is empty, all outputs of the model
    are requested. If `reads_aloud` is true, the message is spoken verbatim. `tools`, `tool_choice`
    and `template` have the same meaning as in `Conversation`.

    `sampling` maps roles to settings, with `INPUT_STAGE` for the stage that reads the messages.
    `delivery` applies to every edge and defaults to the delivery of the deployment. `options` maps
    names to values. With `recordings_alone`, each recording is encoded independently of the others.
    `instruction` is the value of the option that describes how to speak. The option's name depends
    on the model.

    `timeout_s` is the client's remaining timeout for the whole answer, and `start_within_s` is its
    remaining timeout for the start of the answer. `drawn_seed` is the seed of stages that have none
    in `sampling`. It ensures that a repeated order has the same answer. `field_names` maps names in
    errors to the names that the client uses, for example "voice" to "audio.voice". `key` is the
    name of the caller's API key. Once the key is known, `priority` is not higher than that of the
    key.
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
        """Return the approximate size of the data from the client in bytes."""
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
