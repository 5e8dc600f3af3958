"""Converts a conversation to prompt IDs, audio features, and images or videos. All engines use this
module.

This mirrors the families' processors in Hugging Face: it applies the chat template, repeats a
placeholder ID for every position of a recording, image or video, and extracts features. Invalid
requests are rejected here, before an engine does any work for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon.pipelines.media_ids import MediaIds, is_media
from antiphon.pipelines.mrope import RotaryPositions, rotary_positions
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import Conversation, function_names, recordings_alone
from antiphon_services.text.calls import CallRules
from antiphon_services.text.chat import ChatTokenizer, text_bytes
from antiphon_services.thinker.audio import AudioFeatures, AudioFrontEnd, Heard
from antiphon_services.thinker.patches import VisualPatches
from antiphon_services.vllm.media import MediaLimits

if TYPE_CHECKING:
    # This requires Pillow, which doesn't have to be installed for a stage without vision.
    from antiphon_services.thinker.vision import VisionFrontEnd, Visual

Ids = npt.NDArray[np.int32]

JSON_ESCAPE = 6
r"""The maximum number of JSON bytes for one byte of text. JSON represents a control character as
`\u0000`, for example.
"""

PART_BYTES = 128
"""The number of JSON bytes around a message or a part. There can't be more messages and parts than
positions in the prompt.
"""


def any_prompt(ids: Ids) -> None:
    """Accept any prompt."""


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """An engine's input: the IDs (int32 [P]), the audio features, and the images and videos in
    order.

    For engines that use `patches`, these are set, as are the rotary positions `turned` (int64 [P,
    3]) and the next position. `calls` is set if the reply may contain function calls. The last
    `begun` IDs are text that the reply is forced to begin with and are not sent to the talker.
    `listened` is the number of audio positions that were processed during the recording. Their
    features are not included here.
    """

    ids: Ids
    audio: AudioFeatures | None
    visuals: Sequence[Visual] = ()
    patches: Sequence[VisualPatches] = ()
    turned: npt.NDArray[np.int64] | None = None
    following: int = 0
    calls: CallRules | None = None
    begun: int = 0
    listened: int = 0

    @property
    def heard_ids(self) -> Ids:
        """The IDs without the forced beginning of the reply."""
        return self.ids[: len(self.ids) - self.begun]

    @property
    def shift(self) -> int:
        """The difference between the rotary position of an ID in the reply and its position in the
        slot.
        """
        return 0 if self.turned is None else self.following - len(self.ids)

    @property
    def reach(self) -> int:
        """The first position that is free both in the slot and among the rotary positions."""
        return max(len(self.ids), self.following)

    @property
    def audio_positions(self) -> int:
        """The number of positions taken by audio."""
        return self.listened + (sum(self.audio.positions) if self.audio else 0)

    @property
    def image_positions(self) -> int:
        """The number of positions taken by images and videos."""
        return sum(visual.positions for visual in self.visuals)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are sent on the edge `prompt` before computation starts."""
        if not self.visuals:
            return {"ids": self.heard_ids}
        grids = np.array([each.grid for each in self.visuals], dtype=np.int32)
        steps = np.array([each.step for each in self.visuals], dtype=np.int32)
        return {"ids": self.heard_ids, "grids": grids, "steps": steps}


class PromptTooLong(InvalidArgument):
    """Raised if the prompt doesn't leave any space for a reply within the context limit."""


@dataclass(frozen=True, slots=True)
class PromptFactory:
    """Creates prompts for a checkpoint. `context_limit` is the maximum length of the prompt and the
    reply together.

    A conversation can contain up to `max_recordings` recordings. If `vision` is None, images and
    videos are rejected. `check_spoken` raises `InvalidArgument` if the reply to a prompt can't be
    spoken. `patches` splits pixels into patches, for engines that don't decode images themselves.
    `rotary` computes the rotary positions of a prompt with images or videos.
    """

    chat: ChatTokenizer
    audio: AudioFrontEnd
    special: MediaIds
    context_limit: int
    max_recordings: int = MediaLimits().audio
    vision: VisionFrontEnd | None = None
    check_spoken: Callable[[Ids], None] = any_prompt
    patches: Callable[[Visual], VisualPatches] | None = None
    rotary: RotaryPositions = rotary_positions

    @property
    def max_text_bytes(self) -> int:
        """An upper limit for the size of the text. A longer text can't fit, but a shorter one
        doesn't necessarily fit either.
        """
        return self.context_limit * self.chat.bytes_per_id

    def check_size(self, json_bytes: int) -> None:
        """Raise `InvalidArgument` if the JSON of the messages is too long to fit into the
        context.
        """
        if json_bytes > JSON_ESCAPE * self.max_text_bytes + PART_BYTES * self.context_limit:
            raise self._too_long(f"{json_bytes} bytes")

    def prepare(
        self, conversation: Conversation, *, speaks: bool, open_end: bool = False
    ) -> PreparedPrompt:
        """Return the prompt for a conversation. Set `speaks` if the reply is to be spoken.

        If `open_end` is true, the last recording is missing and takes a single position, and the
        other recordings are encoded as if the conversation also contained a long one. Raises
        `InvalidArgument` with the field `messages`, `audio.N`, `image.N` or `video.N`, and
        `NotImplementedYet` if images, videos or functions are not supported.
        """
        if not conversation.messages:
            raise InvalidArgument("messages: must contain at least one message", field="messages")
        if (size := text_bytes(conversation.messages)) > self.max_text_bytes:
            raise self._too_long(f"{size} bytes of text")
        alone = recordings_alone(conversation.messages)
        recordings = self.audio.recall(conversation.recordings)
        heard = self._listen(recordings, alone=alone, more=int(open_end))
        visuals = self._look(conversation)
        short = self.chat.encode(conversation.messages, conversation.tools, conversation.template)
        calls = _call_rules(conversation)
        begun = self.chat.encode_pieces(calls.begun) if calls and calls.begun else []
        ids = self._expand(np.asarray([*short, *begun], dtype=np.int32), heard, visuals)
        self._check(ids, len(ids))
        if speaks:
            self.check_spoken(ids)
        audio = self.audio.extract(recordings, alone=alone, company=open_end)
        prompt = PreparedPrompt(ids, audio, visuals, calls=calls, begun=len(begun))
        return self._cut(prompt, self.patches) if visuals and self.patches else prompt

    def _cut(
        self, prompt: PreparedPrompt, patches: Callable[[Visual], VisualPatches]
    ) -> PreparedPrompt:
        """Return a copy of the prompt that includes patches and rotary positions."""
        told = prompt.tensors()
        seen = self.special.image, self.special.video
        turned, following = self.rotary(
            prompt.ids, seen, told["grids"], told["steps"], edge="prompt"
        )
        self._check(prompt.ids, following)
        cut = tuple(map(patches, prompt.visuals))
        return replace(prompt, patches=cut, turned=turned, following=following)

    def _listen(self, recordings: Sequence[Heard], *, alone: bool, more: int) -> tuple[int, ...]:
        """Return the number of positions for each recording. A missing recording takes a single
        position.
        """
        if (count := len(recordings) + more) > self.max_recordings:
            raise InvalidArgument(
                f"messages: contain {count} recordings; the maximum is {self.max_recordings}; "
                "send fewer, or, if the checkpoint supports audio and the engine is vLLM, "
                "increase audio in engine_args.limit_mm_per_prompt",
                field="messages",
            )
        return self.audio.positions(recordings, alone=alone) + (1,) * more

    def _look(self, conversation: Conversation) -> tuple[Visual, ...]:
        """Return the images and videos in the conversation, in the order of its parts."""
        if not (conversation.images or conversation.videos):
            return ()
        if self.vision is None:
            raise NotImplementedYet(
                "messages: images and videos are not supported by this engine; if the "
                "checkpoint has a vision tower, use `engine: vllm`",
                field="messages",
            )
        return self.vision.look(conversation)

    def _expand(
        self,
        ids: Ids,
        heard: Sequence[int],
        visuals: Sequence[Visual],
    ) -> Ids:
        """Repeat the nth placeholder of a type once for each position of the nth item of this
        type.
        """
        special = self.special
        kinds = (
            ("recordings", special.audio, heard),
            ("images", special.image, [v.positions for v in visuals if v.kind == "image"]),
            ("videos", special.video, [v.positions for v in visuals if v.kind == "video"]),
        )
        if not heard and not visuals and not is_media(ids, special).any():
            return ids
        repeats = np.ones(len(ids), dtype=np.intp)
        for name, id_, positions in kinds:
            placeholders = np.flatnonzero(ids == id_)
            if len(placeholders) != len(positions):
                raise InvalidArgument(
                    f"messages: the chat template has placeholders for {len(placeholders)} of "
                    f"{len(positions)} {name}",
                    field="messages",
                )
            repeats[placeholders] = positions
        return np.repeat(ids, repeats)

    def check_room(self, ids: Ids) -> None:
        """Raise `PromptTooLong` unless there is space for a reply after these IDs."""
        self._check(ids, len(ids))

    def _check(self, ids: Ids, reach: int) -> None:
        """Raise an error unless there is space for a reply after the last position that the prompt
        uses.
        """
        taken = max(len(ids), reach)
        if taken >= self.context_limit:
            raise PromptTooLong(
                f"messages: the prompt takes {taken} positions, which leaves no room for a "
                f"reply within the context limit of {self.context_limit}",
                field="messages",
            )

    def _too_long(self, what: str) -> PromptTooLong:
        return PromptTooLong(
            f"messages: {what} exceed the context limit of {self.context_limit} positions, "
            f"which corresponds to at most {self.max_text_bytes} bytes of text; shorten them",
            field="messages",
        )


def _call_rules(conversation: Conversation) -> CallRules | None:
    """Return the rules for detecting function calls in the reply, or None if the reply can't
    contain any.

    The model may imitate earlier replies, so calls are also detected if the conversation contains
    any.
    """
    choice = conversation.tool_choice
    names = function_names(conversation.tools)
    if names and choice.forced is not None:
        return CallRules.forcing(names, choice.forced, parallel=choice.parallel)
    if names or any(each.tool_calls or each.role == "tool" for each in conversation.messages):
        return CallRules(names, parallel=choice.parallel)
    return None
