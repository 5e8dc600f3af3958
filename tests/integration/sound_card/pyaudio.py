"""PyAudio on the same sound card as `sounddevice.py`, for `examples/pipecat_bot.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sounddevice import SAMPLE_BYTES, RawInputStream, write_heard

paContinue = 0


class PyAudio:
    """Opens a microphone, which calls back, or a loudspeaker, which is written to."""

    def get_format_from_width(self, width: int) -> int:
        assert width == SAMPLE_BYTES
        return width

    def open(
        self,
        *,
        format: int,
        channels: int,
        rate: int,
        input: bool = False,
        output: bool = False,
        frames_per_buffer: int = 0,
        stream_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> Microphone | Loudspeaker:
        assert (format, channels) == (SAMPLE_BYTES, 1)
        assert input is not output
        if stream_callback is None:
            return Loudspeaker()
        return Microphone(stream_callback, rate, 1, "int16", frames_per_buffer)


class Microphone(RawInputStream):
    """$RECORDING."""

    def start_stream(self) -> None:
        self.start()

    def stop_stream(self) -> None:
        self.stop()


class Loudspeaker:
    """What is written is heard at once."""

    def start_stream(self) -> None: ...

    def stop_stream(self) -> None: ...

    def close(self) -> None: ...

    def write(self, samples: bytes) -> None:
        write_heard(samples)
