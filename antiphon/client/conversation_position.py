"""How far a conversation is, so that another server can go on with it. Pure.

The server tells a token, and how many commands it has the outcome of. Those behind them are held
here, within a bound, and sent again to the server that goes on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from antiphon.v1 import converse_pb2

PCM16_BYTES = 2
MOST_AUDIO_BYTES = 4 << 20
"""Of audio that is no message yet; the oldest of more is not sent again."""
MOST_COMMAND_BYTES = 16 << 20
"""Of other commands that the server has not carried out; with more, nothing can be resumed."""

Request = converse_pb2.ConverseRequest


@dataclass(slots=True)
class _Delivered:
    response_id: str
    text: list[str] = field(default_factory=list)
    samples: int = 0


class ConversationPosition:
    """Give it every message of one conversation, both ways, over all servers that have it."""

    def __init__(self) -> None:
        # None before the first one.
        self._token: bytes | None = None
        self._heard = False
        self._rate_hz = 0
        self._sent = 0
        self._audio: deque[tuple[int, Request]] = deque()
        self._commands: deque[tuple[int, Request]] = deque()
        self._audio_bytes = self._command_bytes = 0
        # The last command that was not held.
        self._missed = 0
        self._done = 0
        self._delivered: dict[str, _Delivered] = {}
        # Items and responses whose end has come, and that the last token still has as being made.
        self._ended: set[str] = set()

    @property
    def resumable(self) -> bool:
        """Whether another server can go on: with the last token, or from the beginning if the first
        one was lost before it did anything."""
        if self._token is None:
            return not (self._heard or self._missed)
        return bool(self._token) and self._missed <= self._done

    @property
    def resumed(self) -> converse_pb2.ResumedConversation | None:
        """What another server goes on with; None if that is a new conversation."""
        if self._token is None:
            return None
        delivered = [
            converse_pb2.DeliveredItem(
                item_id=item_id,
                text="".join(has.text),
                audio_s=has.samples / self._rate_hz if self._rate_hz else 0.0,
            )
            for item_id, has in self._delivered.items()
        ]
        return converse_pb2.ResumedConversation(token=self._token, delivered=delivered)

    def sent(self, request: Request) -> None:
        """A command is about to be sent."""
        self._sent += 1
        size = request.ByteSize()
        if request.HasField("append_audio"):
            self._audio.append((self._sent, request))
            self._audio_bytes += size
            while self._audio_bytes > MOST_AUDIO_BYTES:
                self._audio_bytes -= self._audio.popleft()[1].ByteSize()
        else:
            self._commands.append((self._sent, request))
            self._command_bytes += size
            while self._command_bytes > MOST_COMMAND_BYTES:
                self._missed, dropped = self._commands.popleft()
                self._command_bytes -= dropped.ByteSize()

    def begin_again(self) -> None:
        """Another server has the conversation now: what is held is sent to it, from the first."""
        held = sorted([*self._audio, *self._commands], key=lambda each: each[0])
        self._audio.clear()
        self._commands.clear()
        self._audio_bytes = self._command_bytes = 0
        self._sent = self._missed = self._done = 0
        for _, request in held:
            self.sent(request)

    def held(self, behind: int) -> tuple[int, list[Request]]:
        """Commands behind that one, and the number of the last one."""
        held = sorted([*self._audio, *self._commands], key=lambda each: each[0])
        return self._sent, [request for number, request in held if number > behind]

    def note(self, message: converse_pb2.ConverseResponse) -> None:
        """A message has come."""
        event = message.WhichOneof("event")
        self._heard |= event not in ("begun", "saved")
        match event:
            case "begun":
                self._rate_hz = message.begun.sample_rate_hz
            case "saved":
                self._save(message.saved)
            case "response_text":
                words = message.response_text
                self._of(words.response_id, words.item_id).text.append(words.text)
            case "response_audio":
                audio = message.response_audio
                self._of(audio.response_id, audio.item_id).samples += (
                    len(audio.pcm16) // PCM16_BYTES
                )
            case "response_item_ended":
                self._ended.add(message.response_item_ended.item.id)
            case "response_ended":
                self._ended.add(message.response_ended.response.id)

    def is_repeated(self, message: converse_pb2.ConverseResponse) -> bool:
        """Whether the message is the end of an item or a response that had ended already.

        A server that is lost between such an end and the next token leaves it to the one that goes
        on, which takes the item or the response for lost.
        """
        match message.WhichOneof("event"):
            case "response_item_ended":
                return message.response_item_ended.item.id in self._ended
            case "response_ended":
                return message.response_ended.response.id in self._ended
        return False

    def _of(self, response_id: str, item_id: str) -> _Delivered:
        return self._delivered.setdefault(item_id, _Delivered(response_id))

    def _save(self, saved: converse_pb2.ConversationSaved) -> None:
        self._token, self._done = saved.token, saved.commands
        self._delivered = {
            item_id: has
            for item_id, has in self._delivered.items()
            if not self._ended & {item_id, has.response_id}
        }
        self._ended.clear()
        while self._audio and self._audio[0][0] <= saved.audio_commands:
            self._audio_bytes -= self._audio.popleft()[1].ByteSize()
        while self._commands and self._commands[0][0] <= saved.commands:
            self._command_bytes -= self._commands.popleft()[1].ByteSize()
