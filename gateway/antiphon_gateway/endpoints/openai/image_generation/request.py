"""Converts a request to `/v1/images/generations` to an order. All checks that don't depend on a
stage are done here.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.errors import NotImplementedYet
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon.values.options import IMAGE as IMAGE_TASK
from antiphon.values.options import SIZE, TASK, does_task
from antiphon.values.sampling import INPUT_STAGE
from antiphon_gateway.endpoints.http.fields import Unsupported, check_unsupported, decode_fields
from antiphon_gateway.endpoints.http.json_body import invalid
from antiphon_gateway.endpoints.http.options import options_from_json, options_outside
from antiphon_gateway.endpoints.http.stage_sampling import (
    body_decoder,
    sampling_request,
    stage_sampling,
    without_sampling,
)
from antiphon_gateway.endpoints.openai.endpoint import (
    JSON,
    EndpointMessages,
    JsonEndpoint,
    RequestContext,
)
from antiphon_gateway.endpoints.openai.image_generation.answer import ImageAnswers
from antiphon_gateway.endpoints.openai.image_generation.schema import (
    TEXT_FIELD,
    ImagesAnswer,
    ImagesBody,
)
from antiphon_gateway.media.options_in import OptionInput
from antiphon_gateway.orders.order import Order, names_of_text
from antiphon_gateway.outputs import IMAGE

AUTO = "auto"
_OPTION = "for the model's options, see GET /v1/models; set options.NAME, or leave it out"
_WHOLE = "images are only sent when they are complete; leave it out"
UNSUPPORTED: Mapping[str, Unsupported] = {
    "background": Unsupported(
        (AUTO, "opaque"), "images always have an opaque background; leave it out"
    ),
    "output_compression": Unsupported((100,), "PNG is lossless; leave it out"),
    "partial_images": Unsupported((0,), _WHOLE),
    # Values that are defaults of OpenAI's models have no effect.
    "quality": Unsupported((AUTO, "standard"), _OPTION),
    "style": Unsupported(("vivid",), "describe the style in the prompt"),
    "stream": Unsupported(
        (False,),
        "leave it out; to receive progress, use /v1/chat/completions with modalities: ['image'] "
        "and stream: true",
    ),
    # OpenAI has a separate endpoint for editing images.
    "image": Unsupported(remedy="images are only generated from the prompt; leave it out"),
    "mask": Unsupported(remedy="images are only generated from the prompt; leave it out"),
    # These are fields of vllm-omni and other servers.
    "negative_prompt": Unsupported(remedy=_OPTION),
    "num_inference_steps": Unsupported(remedy=_OPTION),
    "guidance_scale": Unsupported(remedy=_OPTION),
    "true_cfg_scale": Unsupported(remedy=_OPTION),
}
"""Fields that are known but not supported."""
_FORMAT, _FILE = "b64_json", "png"


def read_image_request(body: bytes, visit: RequestContext) -> tuple[Order, ImageAnswers]:
    """Parse a request body. Raises `InvalidArgument` or `NotImplementedYet` with the field."""
    decoder = body_decoder(ImagesBody, visit.sampling_stages)
    unsupported = {
        **UNSUPPORTED,
        **options_outside(visit.options),
        **without_sampling(visit.stages),
    }
    asked = decode_fields(decoder, body, unsupported, visit.ignored)
    check_unsupported(asked, UNSUPPORTED)
    if not asked.prompt:
        raise invalid(TEXT_FIELD, "must not be empty; describe the image")
    if asked.n is not None and not 1 <= asked.n <= visit.max_choices:
        raise invalid("n", f"must be from 1 to {visit.max_choices} (gateway.limits.max_choices)")
    _check_formats(asked)
    options, names = _options(asked, visit)
    order = Order(
        model=asked.model,
        messages=(ConversationMessage("user", (TextPart(asked.prompt),)),),
        outputs=frozenset({IMAGE}),
        sampling={
            INPUT_STAGE: sampling_request(asked),
            **stage_sampling(asked, visit.sampling_stages),
        },
        options=options,
        choices=asked.n or 1,
        field_names={"modalities": "model", **names_of_text(TEXT_FIELD), **names},
    )
    return order, ImageAnswers(order.choices)


def _check_formats(asked: ImagesBody) -> None:
    wanted = (asked.response_format or _FORMAT).strip().lower()
    if wanted == "url":
        raise NotImplementedYet(
            "response_format: URLs are not available, because images are not stored; use "
            "'b64_json'",
            field="response_format",
        )
    if wanted != _FORMAT:
        raise invalid("response_format", f"unsupported format {wanted!r}; use 'b64_json'")
    file = (asked.output_format or _FILE).strip().lower()
    if file in ("jpeg", "webp"):
        raise NotImplementedYet(
            f"output_format: {file!r} is not supported; use 'png', or leave it out",
            field="output_format",
        )
    if file != _FILE:
        raise invalid("output_format", f"unsupported format {file!r}; use 'png'")


def _options(
    asked: ImagesBody, visit: RequestContext
) -> tuple[dict[str, OptionInput], dict[str, str]]:
    """Return the model's options, including the size, and a mapping from options to the field names
    for error messages.
    """
    options = options_from_json(asked.options)
    size = (asked.size or "").strip()
    if not size or size.lower() == AUTO:
        names = {}
    elif not any(each.name == SIZE for each in visit.options):
        raise NotImplementedYet(
            "size: can't be chosen for this model; leave it out, or use 'auto'", field="size"
        )
    elif SIZE in options:
        raise invalid("size", "is also set in options.size; set only one of them")
    else:
        options[SIZE], names = size, {f"options.{SIZE}": "size"}
    if TASK not in options and does_task(visit.options, IMAGE_TASK):
        options[TASK] = IMAGE_TASK
    return options, names


IMAGES = JsonEndpoint(
    "/v1/images/generations",
    read_image_request,
    EndpointMessages(
        "Generates images from a prompt.",
        ImagesBody,
        {JSON: ImagesAnswer},
        example=dict(model="MODEL", prompt="A grey cat."),  # noqa: C408 - no name of an edge
    ),
)
