"""Converts an order to a `PreparedRequest`. This happens once per request, before admission.

All validation is based on the same state of the fleet and takes place before anything is fetched or
decoded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import (
    AntiphonError,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    NotImplementedYet,
    Unavailable,
)
from antiphon.values.conversation import TextPart
from antiphon.values.options import TASK
from antiphon.values.template import FIELD
from antiphon_gateway.fleet.accepted import Accepted
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.lineup import Lineup
from antiphon_gateway.fleet.replicated_stage import RETRY_AFTER_S
from antiphon_gateway.media.attachments import (
    AUDIO,
    Attachments,
    FieldsByKind,
    MediaInput,
    audio_limits,
    check_conversation,
    name_field,
)
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.media.options_in import (
    OptionInput,
    OptionReaders,
    check_options,
    read_options,
)
from antiphon_gateway.media.request_media import RequestMedia
from antiphon_gateway.media.sent_recordings import SentRecordings
from antiphon_gateway.orders.order import Order
from antiphon_gateway.orders.prepared import PreparedRequest
from antiphon_gateway.orders.tools import check_tools
from antiphon_gateway.outputs import AUDIO as SPEECH


def too_late() -> DeadlineExceeded:
    """Return the error for a request that couldn't start before its time was up."""
    return DeadlineExceeded("the request timed out while its attachments were being read")


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """An order that the stages of `lineup` accept, according to all checks that don't require
    reading its files. It also lists the stages that read each option.
    """

    order: Order
    lineup: Lineup
    voice: str
    readers: OptionReaders
    field_names: dict[str, str]


class RequestPreparer:
    """Validates and decodes the requests of a gateway."""

    def __init__(self, fleet: Fleet, config: GatewayConfig, media: MediaInput) -> None:
        self._fleet = fleet
        self._config = config
        self._media = media

    def check_model(self, name: str) -> None:
        """Raise `NotFound` unless the name is empty or refers to the served model. Aliases of the
        model are allowed.
        """
        served = self._fleet.model_name()
        if name not in ("", served) and not self._fleet.names.has_model(name):
            raise NotFound(f"unknown model {name!r}; this gateway serves: {served}", field="model")

    def check_options(self, options: Mapping[str, OptionInput]) -> None:
        """Validate options. The content of their recordings isn't validated.

        Raises `InvalidArgument` with the field, and `Unavailable` if a stage that might support an
        option hasn't been reached yet.
        """
        readers = self._fleet.accepted().option_readers(options.keys())
        check_options(options, readers, self._config, recordings=0)

    def check(self, order: Order) -> CheckedRequest:
        """Validate an order against the stages that would currently answer it.

        Raises `NotFound` if the model doesn't exist, `NotImplementedYet` if it doesn't support the
        request, and `InvalidArgument` for any other problem. These errors contain the field name
        that the client used. Raises `Unavailable` if a stage is down or if a stage that might
        support an option hasn't been reached yet.
        """
        with _named(order.field_names):
            self.check_model(order.model)
            lineup = self._fleet.line_up(order.outputs, tool_calls=bool(order.tools))
        return self._checked(order, lineup, order.attachments.fields)

    async def prepare(
        self,
        checked: CheckedRequest,
        *,
        sent: SentRecordings | None = None,
        heard: bool = False,
        is_turn: bool = False,
    ) -> PreparedRequest:
        """Fetch and decode the files of a validated request within its time limit. The caller must
        release the result.

        For a conversation turn, the recordings in `sent` are already in the session. If `heard` is
        true, the last recording was sent while the user was speaking. None of these recordings are
        decoded. The data of a conversation counts towards the conversation's own memory. Raises
        `InvalidArgument` or `NotImplementedYet` with the field of a file that can't be used,
        `DeadlineExceeded` if the time limit is exceeded, and `ResourceExhausted` if there isn't
        enough memory for requests. If this is cancelled, all resources are freed.
        """
        began, order, config = time.monotonic(), checked.order, self._config
        reader = checked.lineup.input_member.description
        limits = audio_limits(reader, config)
        keeps = order.recordings_alone and reader.keeps_recordings
        media = RequestMedia(
            order.attachments,
            self._media,
            reader.input_sample_rate_hz,
            limits,
            key=order.key,
            named=keeps,
            alone=order.recordings_alone or config.media.recordings_alone,
        )
        own_bytes = 0 if is_turn else order.size_bytes
        known = SentRecordings() if sent is None else sent
        within_s = min(config.limits.request_timeout_s, order.timeout_s)
        with _named(checked.field_names), _released_on_error(media):
            media.lease.take(own_bytes)
            async with in_time(within_s):
                await media.decode(known, heard=heard)
                options = await read_options(
                    order.options,
                    checked.readers,
                    config,
                    self._media.decoder,
                    taken_s=media.seconds(known),
                    key=order.key,
                )
            took_s = time.monotonic() - began
            order = replace(
                order,
                timeout_s=within_s - took_s,
                start_within_s=order.start_within_s - took_s,
                options={n: v for n, v in order.options.items() if not isinstance(v, Recording)},
                attachments=order.attachments if order.recordings_alone else Attachments(),
            )
            if order.timeout_s <= 0:
                raise too_late()
            prepared = PreparedRequest(
                order, checked.lineup, checked.voice, media, options, checked.field_names, is_turn
            )
            media.lease.take(prepared.size_bytes)
            return prepared

    def fit(self, prepared: PreparedRequest, lineup: Lineup) -> PreparedRequest:
        """Adapt a request to the stages of a session. If these have the same terms as the stages it
        was validated against, the request is returned unchanged.

        This is necessary because a fleet may contain two builds that accept different requests.
        Raises the errors of `check`, and `Unavailable` if files would have to be decoded again.
        """
        if lineup.terms == prepared.lineup.terms:
            return prepared
        order, rate_hz = prepared.order, lineup.input_member.description.input_sample_rate_hz
        checked = self._checked(order, lineup, prepared.media.fields)
        given = {name: value for each in prepared.options.values() for name, value in each.items()}
        readers = self._accepted(lineup).option_readers(given.keys())
        decoded_for = _audio_readers(prepared, self._accepted(prepared.lineup))
        if _audio_readers(prepared, self._accepted(lineup)) != decoded_for or (
            prepared.media.fields[AUDIO] and rate_hz != prepared.media.rate_hz
        ):
            raise Unavailable(
                "the available stages need recordings in a different format than those that the "
                "request was prepared for; send it again",
                retry_after_s=RETRY_AFTER_S,
            )
        options = {
            role: {n: given[n] for n in given if role in readers[n]} for role in lineup.roles
        }
        return replace(prepared, lineup=lineup, voice=checked.voice, options=options)

    def _accepted(self, lineup: Lineup) -> Accepted:
        return self._fleet.accepted().of_session(lineup)

    def _checked(self, order: Order, lineup: Lineup, files: FieldsByKind) -> CheckedRequest:
        """Validate everything that doesn't depend on the content of files. `files` contains their
        paths.
        """
        config, accepted = self._config, self._accepted(lineup)
        reader = lineup.input_member.description
        fields = _all_names(order.field_names, files)
        with _named(fields):
            order = _with_instruction(order, accepted)
            fields |= order.field_names
            _check_reading(order, lineup)
            voice = lineup.choose_voice(order.voice) if SPEECH in lineup.outputs else ""
            accepted.check_sampling(order.sampling)
            readers = accepted.option_readers(order.options.keys())
            check_options(order.options, readers, config, recordings=len(files[AUDIO]))
            check_tools(order, reader, config)
            check_conversation(order.messages, files, reader, config, order.tools)
        return CheckedRequest(order, lineup, voice, readers, fields)


def _check_reading(order: Order, lineup: Lineup) -> None:
    """Raise an error if the text can't be read aloud as requested.

    Raises `NotImplementedYet` if the model can only answer and not read text aloud, and
    `InvalidArgument` if the input isn't a single user message of text.
    """
    reads_aloud = lineup.input_member.description.reads_aloud
    if order.reads_aloud and not (reads_aloud or TASK in order.options):
        raise NotImplementedYet(
            "model: this model can't read text aloud, because it is made for conversations; use "
            "/v1/chat/completions",
            field="model",
        )
    if not reads_aloud:
        return
    if order.template:
        raise NotImplementedYet(
            f"{FIELD}: this model only reads text aloud and has no chat template; leave it out",
            field=FIELD,
        )
    parts = [part for message in order.messages for part in message.parts]
    said = [message.role for message in order.messages] == ["user"]
    if not said or not all(isinstance(part, TextPart) for part in parts):
        raise InvalidArgument(
            "messages: this model only reads text aloud; send a single user message with text",
            field="messages",
        )


def _audio_readers(
    prepared: PreparedRequest, accepted: Accepted
) -> dict[str, dict[str, tuple[int, float]]]:
    """For each option that is a recording, return the stages that read it and the formats they
    need.
    """
    names = {name for each in prepared.options.values() for name in each}
    recorded = names - prepared.order.options.keys()
    return {
        name: {role: (each.sample_rate_hz, each.max_s) for role, each in options.items()}
        for name, options in accepted.option_readers(recorded).items()
    }


def _with_instruction(order: Order, accepted: Accepted) -> Order:
    """Return the order with its instruction converted to an option.

    Raises `InvalidArgument` if this option is also given, and the errors of `instructing_option`.
    """
    if order.instruction is None:
        return order
    name = accepted.instructing_option()
    if name in order.options:
        raise InvalidArgument(
            f"instruction: is the same as options.{name}; set only one of them", field="instruction"
        )
    mine = order.field_names.get("instruction", "instruction")
    return replace(
        order,
        instruction=None,
        options={**order.options, name: order.instruction},
        field_names={**order.field_names, f"options.{name}": mine},
    )


def _all_names(names: Mapping[str, str], files: FieldsByKind) -> dict[str, str]:
    """Return a mapping to the field names used by the client. It includes files, under their names
    in the conversation.
    """
    by_input = {f"{kind}.{at}": path for kind in files for at, path in enumerate(files[kind])}
    return {**names, **by_input}


@asynccontextmanager
async def in_time(within_s: float) -> AsyncIterator[None]:
    """Raise `DeadlineExceeded` if the block takes longer than `within_s` seconds."""
    try:
        async with asyncio.timeout(within_s) as clock:
            yield
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise too_late() from error


@contextmanager
def _released_on_error(media: RequestMedia) -> Iterator[None]:
    """Release the media if the block raises an error."""
    try:
        yield
    except BaseException:
        media.release()
        raise


@contextmanager
def _named(names: Mapping[str, str]) -> Iterator[None]:
    """In errors that the block raises, replace field names with those used by the client."""
    try:
        yield
    except AntiphonError as error:
        name_field(error, names)
        raise
