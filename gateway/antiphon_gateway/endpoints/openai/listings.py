"""GET requests for the lists of models and voices and for the version."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from antiphon.values.options import Option, OptionKind
from antiphon.version import VERSION
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.endpoints.http.json_response import json_response
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.served import served_model
from antiphon_gateway.media.encoding import available_formats


class OptionCard(msgspec.Struct, frozen=True, kw_only=True):
    """An option with the limits of its type. If `instructs` is true, the option describes how to
    speak.
    """

    name: str
    kind: str
    description: str
    choices: tuple[str, ...] | UnsetType = UNSET
    max_bytes: int | UnsetType = UNSET
    least: float | UnsetType = UNSET
    most: float | UnsetType = UNSET
    max_s: float | UnsetType = UNSET
    instructs: bool | UnsetType = UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's model object, extended by what requests may contain.

    `root` is the name of the served model, which differs from `id` only for aliases.
    `voice_aliases` maps additional names to voices. `created` is the Unix time in seconds at which
    the gateway started. `max_model_len` is the same as `context_limit`, under the name that vLLM's
    clients use.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str = "antiphon"
    root: str
    voices: tuple[str, ...]
    voice_aliases: Mapping[str, str]
    outputs: tuple[str, ...]
    input_kinds: tuple[str, ...]
    reads_aloud: bool
    sample_rate_hz: int
    audio_formats: tuple[str, ...]
    context_limit: int
    max_model_len: int
    sampling_stages: tuple[str, ...]
    options: tuple[OptionCard, ...]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The model under each of its names, starting with its own name."""

    object: str = "list"
    data: tuple[ModelCard, ...]


class VoiceCard(msgspec.Struct, frozen=True):
    """A voice. Both fields are valid values for `voice` in a request."""

    id: str
    name: str


class VoiceList(msgspec.Struct, frozen=True, kw_only=True):
    """The model's voices.

    If a request does not specify a voice, the model's default is used. This is the first voice, or
    no voice if the model can speak without one.
    """

    object: str = "list"
    voices: tuple[VoiceCard, ...]


class VersionCard(msgspec.Struct, frozen=True):
    """The version of antiphon."""

    version: str


def listing_routes(calls: Calls) -> list[BaseRoute]:
    """Return the routes for GET requests for each list."""
    fleet, created = calls.fleet, int(time.time())

    async def models(_: Request) -> Response:
        return json_response(model_list(fleet, created))

    async def model(asked: Request) -> Response:
        name = asked.path_params["name"]
        calls.check_model(name)
        return json_response(model_card(fleet, created, name))

    async def voices(asked: Request) -> Response:
        calls.check_model(asked.query_params.get("model", ""))
        return json_response(voice_list(fleet))

    async def version(_: Request) -> Response:
        return json_response(VersionCard(VERSION))

    return [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/v1/audio/voices", voices),
        Route("/version", version),
    ]


def model_list(fleet: Fleet, created: int) -> ModelList:
    """Return the served model under all of its names. Raises `Unavailable` if no stage has reported
    the model yet.
    """
    card = model_card(fleet, created)
    aliases = served_model(fleet).aliases
    return ModelList(data=(card, *(replace(card, id=alias) for alias in aliases)))


def model_card(fleet: Fleet, created: int, name: str = "") -> ModelCard:
    """Return the served model under the given name. If the name is empty, its own name is used.
    Raises the same errors as `model_list`.
    """
    served = served_model(fleet)
    return ModelCard(
        id=name or served.name,
        created=created,
        root=served.name,
        voices=served.voices,
        voice_aliases=served.voice_aliases,
        outputs=served.outputs,
        input_kinds=served.input_kinds,
        reads_aloud=served.reads_aloud,
        sample_rate_hz=served.sample_rate_hz,
        audio_formats=available_formats() if served.sample_rate_hz else (),
        context_limit=served.context_limit,
        max_model_len=served.context_limit,
        sampling_stages=served.sampling_stages,
        options=tuple(map(_option_card, served.options)),
    )


def voice_list(fleet: Fleet) -> VoiceList:
    """Return the voices that can currently be requested. Raises `Unavailable` if no stage has
    reported them yet.
    """
    return VoiceList(voices=tuple(VoiceCard(each, each) for each in served_model(fleet).voices))


def _option_card(option: Option) -> OptionCard:
    text, number = option.kind is OptionKind.TEXT, option.kind is OptionKind.NUMBER
    return OptionCard(
        name=option.name,
        kind=option.kind.value,
        description=option.description,
        choices=option.choices if text and option.choices else UNSET,
        max_bytes=option.max_bytes if text and not option.choices else UNSET,
        least=option.least if number else UNSET,
        most=option.most if number else UNSET,
        max_s=option.max_s if option.kind is OptionKind.AUDIO else UNSET,
        instructs=option.instructs or UNSET,
    )
