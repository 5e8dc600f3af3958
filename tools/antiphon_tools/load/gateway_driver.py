"""Loads the gateway through one of its endpoints: gRPC with the SDK, or HTTP with SSE."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from antiphon.client.aio import AsyncClient
from antiphon.client.events import AudioDelta, Event, Finished, ImageDelta, TextDelta
from antiphon.client.reply import BYTES_PER_SAMPLE
from antiphon.client.request import Modality
from antiphon.client.retrying import Retry
from antiphon.errors import AntiphonError, DataLoss, DeadlineExceeded, Unavailable
from antiphon.values.sampling import INPUT_STAGE
from antiphon_tools.load.content import AUDIO, Content
from antiphon_tools.load.http_stream import HttpAddress, server_sent_events
from antiphon_tools.load.measured import StageTimes, Trace
from antiphon_tools.load.openai_stream import ChatPiece, read_event
from antiphon_tools.load.request_options import to_client, to_json
from antiphon_tools.load.served import ModelUnderLoad
from antiphon_tools.load.trust import Trust

CHAT_PATH = "/v1/chat/completions"


class GrpcDriver:
    """Implements `run.Driver` with `antiphon.AsyncClient`.

    The sizes of `text`, `audio` and `image` only count the characters, samples and files
    themselves.
    """

    def __init__(
        self,
        address: str,
        model: ModelUnderLoad,
        content: Content,
        *,
        timeout_s: float,
        trust: Trust | None = None,
        api_key: str = "",
    ) -> None:
        self.outputs = content.outputs or model.outputs
        # A rejection is a valid result, so the request must not be retried.
        once, tls = Retry(attempts=1), trust.over_grpc() if trust else False
        self._client = AsyncClient(
            address, tls=tls, api_key=api_key or None, key_in_clear=True, retry=once
        )
        self._model = model
        self._content = content
        self._timeout_s = timeout_s

    async def ask(self, trace: Trace) -> None:
        """Make a `Generate` call."""
        content = self._content
        generation = self._client.generate(
            content.prompt(trace.number),
            timeout_s=self._timeout_s,
            modalities=cast("Sequence[Modality]", self.outputs),
            voice=content.voice,
            sampling=self._model.sampling(content, trace.number),
            options=to_client(content.options, self._model.numbers),
            delivery=content.delivery,
            chunk_policy=content.chunk_policy,
        )
        async with generation:
            async for event in generation:
                now = asyncio.get_running_loop().time()
                _note(event, now, trace, generation.sample_rate_hz)

    async def aclose(self) -> None:
        """Cancel all calls and close the connection."""
        await self._client.close()


def _note(event: Event, now: float, trace: Trace, sample_rate_hz: int) -> None:
    match event:
        case TextDelta(text=text) if text:
            trace.texts.append(now)
            trace.moved("text", len(text.encode()))
        case AudioDelta(pcm16=pcm16) if pcm16:
            trace.audio.append((now, len(pcm16) / (BYTES_PER_SAMPLE * sample_rate_hz)))
            trace.moved("audio", len(pcm16))
        case ImageDelta(images=images):
            trace.images += [now] * len(images)
            trace.moved("image", sum(len(each.file) for each in images))
        case Finished(reports=reports):
            trace.stages |= {role: StageTimes.of(report) for role, report in reports.items()}


class HttpDriver:
    """Implements `run.Driver` with streamed chat completions. Each request uses a new connection.

    The sizes of `text`, `audio` and `image` count complete server-sent events, including base64
    encoding.
    """

    def __init__(
        self, address: HttpAddress, model: ModelUnderLoad, content: Content, *, timeout_s: float
    ) -> None:
        self.outputs = content.outputs or model.outputs
        self._address = address
        self._model = model
        self._content = content
        self._timeout_s = timeout_s

    async def ask(self, trace: Trace) -> None:
        """Request a chat completion and read it up to `[DONE]`."""
        body = msgspec.json.encode(self._body(trace.number))
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._read(body, trace)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the answer did not end within {self._timeout_s:g} s"
            ) from error
        except (OSError, EOFError) as error:
            raise Unavailable(f"{self._address}: {error}") from error

    async def _read(self, body: bytes, trace: Trace) -> None:
        ended = False
        stream = server_sent_events(self._address, CHAT_PATH, body)
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                piece = read_event(event)
                now = asyncio.get_running_loop().time()
                if isinstance(piece, AntiphonError):
                    raise piece
                ended = ended or piece.done
                self._note(piece, len(event), now, trace)
        if not ended:
            raise DataLoss("the stream ended before [DONE]")

    def _note(self, piece: ChatPiece, size_bytes: int, now: float, trace: Trace) -> None:
        if piece.text:
            trace.texts.append(now)
            trace.moved("text", size_bytes)
        if piece.pcm16_bytes:
            seconds = piece.pcm16_bytes / (BYTES_PER_SAMPLE * self._model.sample_rate_hz)
            trace.audio.append((now, seconds))
            trace.moved("audio", size_bytes)
        if piece.images:
            trace.images += [now] * piece.images
            trace.moved("image", size_bytes)

    def _body(self, number: int) -> dict[str, Any]:
        content, model = self._content, self._model
        sampling = model.sampling(content, number)
        reading = sampling.pop(INPUT_STAGE)
        body: dict[str, Any] = {
            "model": model.id,
            "messages": [{"role": "user", "content": content.prompt(number)}],
            "modalities": self.outputs,
            "seed": reading.seed,
            "max_completion_tokens": reading.max_tokens,
            "stream": True,
            **{stage: request.given() for stage, request in sampling.items()},
        }
        if AUDIO in self.outputs:
            recorded = any(isinstance(each, bytes) for each in content.options.values())
            voice = content.voice or ("" if recorded else next(iter(model.voices), ""))
            body["audio"] = {"voice": voice, "format": "pcm16"}
        if content.options:
            body["options"] = to_json(content.options, model.numbers)
        if content.delivery is not None:
            body["delivery"] = content.delivery.value
        if content.chunk_policy is not None:
            body["chunk_policy"] = content.chunk_policy
        return body
