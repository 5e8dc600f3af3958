"""What a client may be told that does something at the wrong time."""

from __future__ import annotations

from antiphon.errors import FailedPrecondition


class NoAudio(FailedPrecondition):
    """The input audio buffer is empty."""

    def __init__(self) -> None:
        super().__init__("the input audio buffer is empty; append audio before you commit")


class ResponseUnderWay(FailedPrecondition):
    """The conversation has one response at a time."""

    def __init__(self) -> None:
        super().__init__(
            "a response is being made; wait for its end (response.done), or cancel it first"
        )


class NoResponse(FailedPrecondition):
    """There is nothing to cancel."""

    def __init__(self) -> None:
        super().__init__("no response is being made")
