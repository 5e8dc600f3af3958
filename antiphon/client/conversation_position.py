"""Tracks the state from which another server can continue a conversation. This module performs no
I/O.

The server sends a token together with the number of commands that it covers. The client keeps all
later commands, up to a limit. If another server takes over the conversation, the client sends these
commands to it again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from antiphon.v1 import converse_pb2

PCM16_BYTES = 2
MOST_AUDIO_BYTES = 4 << 20
"""The maximum amount of uncommitted audio that is kept for resending, in bytes. Beyond this limit,
the oldest audio is dropped.
"""
MOST_COMMAND_BYTES = 16 << 20
"""The maximum total size of all other commands that are kept for resending, in bytes. Beyond this
limit, the conversation can no longer be resumed.
"""

Request = converse_pb2.ConverseRequest


@dataclass(slots=True)
class _Delivered:
    response_id: str
    text: list[str] = field(default_factory=list)
    samples: int = 0


class ConversationPosition:
    """Tracks a single conversation. Every message that is sent to or received from a server must be
    passed to it.
    """

    def __init__(self) -> None:
        # None until the server has sent its first token.
        self._token: bytes | None = None
        self._heard = False
        self._rate_hz = 0
        self._sent = 0
        self._audio: deque[tuple[int, Request]] = deque()
        self._commands: deque[tuple[int, Request]] = deque()
        self._audio_bytes = self._command_bytes = 0
        # The number of the last command that was dropped.
        self._missed = 0
        self._done = 0
        self._delivered: dict[str, _Delivered] = {}
        # Items and responses that have ended, although the last token still describes them as being
        # in progress.
        self._ended: set[str] = set()

    @property
    def resumable(self) -> bool:
        """Whether another server can continue the conversation.

        Usually, this requires a token. However, if the first server was lost before it had sent any
        event, the conversation can simply start over.
        """
        if self._token is None:
            return not (self._heard or self._missed)
        return bool(self._token) and self._missed <= self._done

    @property
    def resumed(self) -> converse_pb2.ResumedConversation | None:
        """The state from which another server can continue, or None for a new conversation."""
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
        """Record a command before it is sent."""
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
        """Renumber the kept commands, starting at 1, because this is where a new server starts
        counting.
        """
        held = sorted([*self._audio, *self._commands], key=lambda each: each[0])
        self._audio.clear()
        self._commands.clear()
        self._audio_bytes = self._command_bytes = 0
        self._sent = self._missed = self._done = 0
        for _, request in held:
            self.sent(request)

    def held(self, behind: int) -> tuple[int, list[Request]]:
        """Return the number of the last command and all kept commands after the command with the
        number `behind`.
        """
        held = sorted([*self._audio, *self._commands], key=lambda each: each[0])
        return self._sent, [request for number, request in held if number > behind]

    def note(self, message: converse_pb2.ConverseResponse) -> None:
        """Record a message that was received."""
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
        """Return whether the message ends an item or response that has already ended.

        This can happen if a server reports the end but is lost before sending its next token. The
        server that takes over then reports the item or response as lost.
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
