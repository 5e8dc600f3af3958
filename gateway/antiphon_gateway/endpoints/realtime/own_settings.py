"""The `session.antiphon` and `response.antiphon` fields. They contain model options and sampling
settings by stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from antiphon.errors import AntiphonError, InvalidArgument
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.http.options import options_from_json
from antiphon_gateway.endpoints.http.stage_sampling import sampling_request
from antiphon_gateway.endpoints.realtime.client_events import OwnResponseSettings
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.media.data_url import decoded_base64

SESSION = "session.antiphon"
OWN_SETTINGS = frozenset({"answer_every_s", "options", "sampling"})
"""The names of conversation settings that don't exist in OpenAI's API."""


def with_own(
    holds: ConversationSettings, asked: OwnResponseSettings, where: str
) -> ConversationSettings:
    """Return the settings with a client's options and sampling settings applied.

    If a field is invalid, `InvalidArgument` is raised with its path, which begins with `where`.
    """
    sampling = {}
    for stage, given in asked.sampling.items():
        try:
            sampling[stage] = sampling_request(given)
        except InvalidArgument as error:
            field = f"{where}.sampling.{stage}".rstrip(".")
            raise InvalidArgument(
                f"{field}.{error.message}", field=f"{field}.{error.field}"
            ) from None
    options = _options(asked.options, where)
    with named_within(where):
        return holds.with_sampling(sampling).with_options(options)


@contextmanager
def named_within(where: str) -> Iterator[None]:
    """Prefix the field in errors about antiphon-specific settings with `where`."""
    try:
        yield
    except AntiphonError as error:
        setting = error.field.partition(".")[0]
        if setting in OWN_SETTINGS:
            # Replace the name of the field only where it is a field, and not if the same word
            # occurs elsewhere in the sentence.
            message = re.sub(rf"(?<![\w.]){setting}(?=\.\w|:)", f"{where}.{setting}", error.message)
            error.message, error.args = message, (message,)
            error.field = f"{where}.{error.field}"
        raise


def _options(given: Mapping[str, msgspec.Raw], where: str) -> dict[str, str | float | bytes | None]:
    """Return the options by name. If a recording has no data, as in `session.updated`, the option
    remains unchanged.
    """
    removed: dict[str, None] = {name: None for name, raw in given.items() if bytes(raw) == b"null"}
    rest = {name: raw for name, raw in given.items() if name not in removed}
    options: dict[str, str | float | bytes | None] = {**removed}
    for name, value in options_from_json(rest, f"{where}.options").items():
        if not isinstance(value, Recording):
            options[name] = value
        elif value.data:
            assert isinstance(value.data, str), "send recordings as base64"
            options[name] = decoded_base64(value.data, value.field)
    return options


def own_json(holds: ConversationSettings) -> dict[str, Any]:
    """Return the antiphon-specific settings that the client has set."""
    every_s = holds.answer_every_s
    sampling = {stage: each.given() for stage, each in holds.sampling.items()}
    options = {
        name: {"data": ""} if isinstance(value, bytes) else value
        for name, value in holds.options.items()
    }
    return {
        **({"answer_every_s": every_s} if every_s is not None else {}),
        **({"options": options} if options else {}),
        **({"sampling": sampling} if sampling else {}),
    }
