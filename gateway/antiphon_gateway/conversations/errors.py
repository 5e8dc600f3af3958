"""Errors for commands that aren't allowed in the current state."""

from __future__ import annotations

from typing import Literal

from antiphon.errors import FailedPrecondition, NotFound


class NoAudio(FailedPrecondition):
    """The input audio buffer is empty."""

    def __init__(self) -> None:
        super().__init__("the input audio buffer is empty; append audio before you commit it")


class ResponseUnderWay(FailedPrecondition):
    """A response to the conversation is already in progress. There can be only one at a time."""

    def __init__(self) -> None:
        super().__init__(
            "a response is already in progress; wait until it ends (response.done), or cancel "
            "it first"
        )


class NoResponse(FailedPrecondition):
    """There is no response to cancel."""

    def __init__(self) -> None:
        super().__init__("no response is in progress")


ItemUse = Literal["delete", "retrieve", "truncate"]


class NoSuchItem(NotFound):
    """A command refers to an item that doesn't exist or was removed."""

    def __init__(self, use: ItemUse, error: NotFound) -> None:
        super().__init__(error.message, field=error.field)
        self.use: ItemUse = use
