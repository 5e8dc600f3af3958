"""Reads the gateway's description of the served model from one of its endpoints."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antiphon.errors import DataLoss, FailedPrecondition, Internal, NotFound, Unavailable
from antiphon.values.sampling import INPUT_STAGE, SamplingRequest
from antiphon_tools.launcher.plan import GATEWAY
from antiphon_tools.load.content import AUDIO, TEXT, Content
from antiphon_tools.load.http_stream import HttpAddress, get
from antiphon_tools.load.kind import describe_gateway
from antiphon_tools.load.request_options import NUMBER
from antiphon_tools.load.trust import Trust


class OptionUnderLoad(msgspec.Struct, frozen=True):
    """An option of a model and the type of its value."""

    name: str
    kind: str


class ModelUnderLoad(msgspec.Struct, frozen=True):
    """A model as listed by `/v1/models`.

    Other servers may only return the `id`, so the defaults of the other fields match OpenAI's
    models.
    """

    id: str
    outputs: tuple[str, ...] = (TEXT, AUDIO)
    voices: tuple[str, ...] = ()
    sampling_stages: tuple[str, ...] = ()
    sample_rate_hz: int = 24_000
    options: tuple[OptionUnderLoad, ...] = ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of options whose values are numbers."""
        return tuple(option.name for option in self.options if option.kind == NUMBER)

    def sampling(self, content: Content, number: int) -> dict[str, SamplingRequest]:
        """Return the sampling parameters of each stage.

        The key "" represents the stage that reads the messages. Its maximum length is the text's
        maximum length, or the audio's if no other stage samples.
        """
        speech = content.sampling(number, text=False)
        reading = SamplingRequest(seed=number)
        if TEXT in self.outputs or not self.sampling_stages:
            reading = content.sampling(number, text=TEXT in self.outputs)
        return {INPUT_STAGE: reading, **dict.fromkeys(self.sampling_stages, speech)}


class _Models(msgspec.Struct, frozen=True):
    data: tuple[ModelUnderLoad, ...]


async def told_over_grpc(
    address: str, trust: Trust | None = None, api_key: str = ""
) -> ModelUnderLoad:
    """Return the first model of `GetServerInfo`. Raises the errors of `describe_gateway`."""
    models = [
        ModelUnderLoad(
            m.name,
            m.output_kinds,
            m.voices,
            m.sampling_stages,
            m.sample_rate_hz,
            tuple(OptionUnderLoad(option.name, option.kind) for option in m.options),
        )
        for m in await describe_gateway(address, trust, api_key)
    ]
    return _first(models, address)


async def told_over_http(address: HttpAddress) -> ModelUnderLoad:
    """Return the first model of `/v1/models`.

    Raises `FailedPrecondition` if the server is not a gateway, and `Unavailable` if there is no
    response.
    """
    try:
        models = msgspec.json.decode(await get(address, "/v1/models"), type=_Models)
    except (OSError, EOFError) as error:
        raise Unavailable(f"{address}: {error}") from error
    except (NotFound, DataLoss, Internal) as error:
        raise FailedPrecondition(
            f"{address} did not list models like a {GATEWAY}: {error.message}"
        ) from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FailedPrecondition(f"{address}: did not list any models: {error}") from error
    return _first(models.data, address)


def _first(models: Sequence[ModelUnderLoad], address: HttpAddress | str) -> ModelUnderLoad:
    if not models:
        raise FailedPrecondition(f"{address}: serves no model")
    return models[0]
