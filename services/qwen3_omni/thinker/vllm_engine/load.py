"""Starts vLLM for a checkpoint's thinker."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import vllm
from pydantic import ValidationError
from vllm import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerFactory

from antiphon.chunk import Tensor
from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, Internal, InvalidArgument
from services.qwen3_omni.thinker.intake import Intake
from services.qwen3_omni.thinker.vllm_engine.arguments import engine_arguments
from services.qwen3_omni.thinker.vllm_engine.engine import VllmThinkerEngine
from services.qwen3_omni.thinker.vllm_engine.host import VllmHost
from services.qwen3_omni.thinker.vllm_engine.mailbox import Ended, Mailbox, Rows
from services.qwen3_omni.thinker.vllm_engine.media import MediaLimits
from services.qwen3_omni.thinker.vllm_engine.prompt_check import PromptCheck
from services.qwen3_omni.thinker.vllm_engine.restarts import Restarts
from services.qwen3_omni.thinker.vllm_engine.row_receiver import RowReceiver
from services.qwen3_omni.thinker.vllm_engine.spans import Span

_log = logging.getLogger(__name__)


def load_engine(
    model_dir: Path,
    checkpoint: Mapping[str, Any],
    config: StageConfig,
    intake: Intake,
    *,
    media: MediaLimits,
    tapped: bool,
) -> VllmThinkerEngine:
    """The engine, serving. `checkpoint` is the `config.json`.

    It takes what `media` says, and has the hidden rows of prompts if it is `tapped`.
    Raises `InvalidArgument` for arguments that vLLM does not take, `FailedPrecondition`
    for a checkpoint whose tap it cannot place, and what vLLM's start raises.
    """
    thinker = checkpoint["thinker_config"]["text_config"]
    layer = checkpoint["talker_config"]["accept_hidden_layer"]
    if not 0 <= layer < thinker["num_hidden_layers"]:
        raise FailedPrecondition(
            f"the talker reads layer {layer}; vLLM can tap 0 to {thinker['num_hidden_layers'] - 1}"
        )
    mailbox = Mailbox()
    rows = RowReceiver(
        rows=partial(_take_rows, mailbox),
        lost=partial(_lose_rows, mailbox),
        broken=lambda life: host.report_broken(life),
        life=lambda: host.life,
    )
    arguments = engine_arguments(
        model_dir,
        checkpoint,
        config,
        context_limit=intake.prompts.context_limit,
        media=media,
        rows=rows.address if tapped else None,
    )
    start = partial(_start, arguments, measured=bool(config.metrics_listen))
    host = VllmHost(start, mailbox, Restarts(), config.engine_nice or 0)

    def close() -> None:
        rows.close()
        host.close()

    try:
        host.start()
    except BaseException:
        close()
        raise
    _log.info("vllm %s serves on %s", vllm.__version__, config.device)
    check = PromptCheck(intake.prompts.special, thinker["vocab_size"], hears=media.audio > 0)
    return VllmThinkerEngine(intake, check, host, mailbox, close=close)


def _start(arguments: AsyncEngineArgs, *, measured: bool) -> AsyncLLM:
    """A new engine; blocks until its processes serve.

    One that is `measured` has its series in Prometheus's default registry, which the stage's
    page shows. Its other logger keeps more and more until somebody asks for its line.
    """
    loggers: list[StatLoggerFactory] = [PrometheusStatLogger] if measured else []
    try:
        return AsyncLLM.from_engine_args(arguments, stat_loggers=loggers)
    except ValidationError as error:
        raise InvalidArgument(f"engine_args: {error}", field="engine_args") from error
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise FailedPrecondition(
            f"vLLM does not start: {error} (engine_args may help; vLLM's log above has the cause)"
        ) from error


def _take_rows(mailbox: Mailbox, span: Span, rows: Tensor) -> None:
    mailbox.put(Rows(span.number, span.start, rows))


def _lose_rows(mailbox: Mailbox, number: int) -> None:
    mailbox.put(Ended(number, Internal("hidden rows were lost: the stage took them too slowly")))
