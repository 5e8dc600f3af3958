"""Validates a request's options and converts them to the form that the stages receive."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor
from antiphon.values.options import Option, OptionKind, OptionValue
from antiphon.values.sampling import utf8_size
from antiphon_gateway.media.audio_in import (
    AudioLimits,
    Recording,
    check_recordings,
    decode_recording,
)
from antiphon_gateway.media.decoding.decoder import MediaDecoder

OptionInput = str | float | Recording
"""Text, a number or an audio file."""

OptionReaders = Mapping[str, Mapping[str, Option]]
"""Maps option names to the stages that read the option, each with the stage's description of it."""

OptionsByRole = Mapping[str, Mapping[str, OptionValue]]

MAX_OPTIONS = 64
"""The maximum number of options. Endpoints check the number before they read any options."""

_RECORDING = np.zeros(1, np.float32)


def check_options(
    given: Mapping[str, OptionInput],
    readers: OptionReaders,
    config: GatewayConfig,
    *,
    recordings: int,
) -> None:
    """Validate options. The content of their recordings isn't validated.

    The messages contain `recordings` recordings. Raises `InvalidArgument` with the invalid field.
    """
    size = 0
    for name, value in given.items():
        field = f"options.{name}"
        recordings += isinstance(value, Recording)
        if isinstance(value, Recording) and recordings > config.limits.max_recordings:
            raise InvalidArgument(
                f"{field}: the request has more than {config.limits.max_recordings} recordings",
                field=field,
            )
        size += _size_bytes(value)
        if size > config.limits.max_option_bytes:
            raise InvalidArgument(
                f"{field}: with this option, the request's options have more than "
                f"{config.limits.max_option_bytes} bytes (gateway.limits.max_option_bytes)",
                field=field,
            )
        for option in readers[name].values():
            if not isinstance(value, Recording):
                option.check(value)
            elif option.kind is not OptionKind.AUDIO:
                option.check(_RECORDING)


async def read_options(
    given: Mapping[str, OptionInput],
    readers: OptionReaders,
    config: GatewayConfig,
    decoder: MediaDecoder,
    *,
    taken_s: float,
    key: str = "",
) -> OptionsByRole:
    """Return what each stage receives, given options that have been validated. Recordings are
    decoded outside the event loop.

    The messages contain `taken_s` seconds of recordings, and `key` is the name of the caller. If a
    recording can't be read or is too long, `InvalidArgument` is raised with its field.
    """
    found: dict[str, dict[str, OptionValue]] = {}
    for name, value in given.items():
        seconds = 0.0
        for role, option in readers[name].items():
            ready: OptionValue
            if isinstance(value, Recording):
                ready = await _decode(value, option, config, decoder, taken_s, key)
                seconds = len(ready) / option.sample_rate_hz
            else:
                ready = value
            found.setdefault(role, {})[name] = ready
        taken_s += seconds
    return found


async def _decode(
    recording: Recording,
    option: Option,
    config: GatewayConfig,
    decoder: MediaDecoder,
    taken_s: float,
    key: str,
) -> Tensor:
    limits = AudioLimits(
        recordings=1,
        each_s=min(config.limits.max_recording_s, option.max_s),
        all_s=config.limits.max_audio_s,
    )
    check_recordings((recording.field,), rate_hz=option.sample_rate_hz, limits=limits)
    samples = await decode_recording(
        recording,
        decoder,
        rate_hz=option.sample_rate_hz,
        left_s=limits.all_s - taken_s,
        limits=limits,
        key=key,
    )
    option.check(samples)
    return samples


def _size_bytes(value: OptionInput) -> int:
    match value:
        case str():
            return utf8_size(value)
        case Recording(data=bytes() | str() as data):
            return len(data)
        case _:
            return 0
