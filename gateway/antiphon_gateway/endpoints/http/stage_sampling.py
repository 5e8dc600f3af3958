"""JSON fields that are named after stages and contain the sampling settings of these stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar, cast

import msgspec

from antiphon.errors import InvalidArgument
from antiphon.values.sampling import SamplingRequest
from antiphon_gateway.endpoints.http.fields import Unsupported, or_all, or_unset

Body = TypeVar("Body", bound=msgspec.Struct)


class StageSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sampling settings of one stage. For stages that do not read the input, they extend
    OpenAI's API.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None


@lru_cache(maxsize=16)
def body_type(kind: type[Body], stages: tuple[str, ...]) -> type[Body]:
    """Return a body type with an additional field for the sampling settings of each stage. No field
    is added if the body already has one with that name.
    """
    taken = set(kind.__struct_encode_fields__)
    names = {_attribute(at): stage for at, stage in enumerate(stages) if stage not in taken}
    with_stages = msgspec.defstruct(
        kind.__name__,
        [(name, StageSampling | None, None) for name in names],
        bases=(kind,),
        rename=names,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast(type[Body], with_stages)


@lru_cache(maxsize=16)
def body_decoder(kind: type[Body], stages: tuple[str, ...]) -> msgspec.json.Decoder[Body]:
    """Return a decoder for the type returned by `body_type`."""
    return msgspec.json.Decoder(body_type(kind, stages))


def without_sampling(stages: Sequence[str]) -> dict[str, Unsupported]:
    """Return the stage fields as unsupported fields. Use this for bodies that don't have them."""
    remedy = (
        "sampling can't be set for this stage; for the stages that support it, see GET /v1/models"
    )
    return {stage: Unsupported(remedy=remedy) for stage in stages}


def sampling_request(given: StageSampling) -> SamplingRequest:
    """Return the sampling settings in these fields. If a field is invalid, `InvalidArgument` is
    raised with that field.
    """
    return SamplingRequest(
        temperature=given.temperature,
        top_k=or_all(given.top_k),
        top_p=given.top_p,
        repetition_penalty=given.repetition_penalty,
        seed=or_unset(given.seed),
        max_tokens=or_unset(given.max_tokens),
    )


def stage_sampling(body: msgspec.Struct, stages: Sequence[str]) -> dict[str, SamplingRequest]:
    """Return the stages' sampling settings. If a field is invalid, `InvalidArgument` is raised with
    that field.
    """
    found = {}
    for at, stage in enumerate(stages):
        given = getattr(body, _attribute(at), None)
        if given is None:
            continue
        try:
            found[stage] = sampling_request(given)
        except InvalidArgument as error:
            field = f"{stage}.{error.field}"
            raise InvalidArgument(f"{stage}.{error.message}", field=field) from None
    return found


def _attribute(place: int) -> str:
    return f"stage_{place}"
