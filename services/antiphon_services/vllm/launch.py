"""Starts vLLM for a stage and connects the two."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import vllm
import xgrammar
from pydantic import ValidationError
from vllm import AsyncEngineArgs
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerFactory

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from antiphon.values.chunk import Tensor
from antiphon_services.vllm.host import VllmHost
from antiphon_services.vllm.mailbox import Ended, Mailbox, Rows
from antiphon_services.vllm.restarts import Restarts
from antiphon_services.vllm.row_receiver import RowAddress, RowReceiver
from antiphon_services.vllm.schema_messages import SchemaVocabulary
from antiphon_services.vllm.spans import RowSpan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launched:
    """A running host with its mailbox, and a function that stops both."""

    host: VllmHost
    mailbox: Mailbox
    close: Callable[[], None]


def launch(
    role: str,
    config: StageConfig,
    arguments: Callable[[RowAddress], AsyncEngineArgs],
    *,
    takes_schemas: bool,
) -> Launched:
    """Start vLLM. `arguments` is a function that receives the address for hidden rows and returns
    the engine arguments.

    If `takes_schemas` is true, a separate process checks JSON schemas. Raises any error of
    `arguments`, and `InvalidArgument` if vLLM doesn't accept an argument. Errors that vLLM raises
    during startup are passed on.
    """
    mailbox = Mailbox()
    rows = RowReceiver(
        rows=partial(_take_rows, mailbox),
        lost=partial(_lose_rows, mailbox),
        broken=lambda life: host.report_broken(life),
        life=lambda: host.life,
    )
    try:
        start = partial(_start, arguments(rows.address), measured=bool(config.metrics_listen))
    except BaseException:
        rows.close()
        raise
    vocabulary = vocabulary_of if takes_schemas else None
    host = VllmHost(role, start, mailbox, Restarts(), config.engine_nice or 0, vocabulary)

    def close() -> None:
        rows.close()
        host.close()

    try:
        host.start()
    except BaseException:
        close()
        raise
    _log.info("vLLM %s is running on %s", vllm.__version__, config.device)
    return Launched(host, mailbox, close)


def _start(arguments: AsyncEngineArgs, *, measured: bool) -> AsyncLLM:
    """Create an engine. This blocks until the engine's processes are ready to serve requests.

    If `measured` is true, the engine's metrics are added to Prometheus's default registry, which
    the stage exports. vLLM's other logger isn't used, because it accumulates data until it logs a
    line.
    """
    loggers: list[StatLoggerFactory] = [PrometheusStatLogger] if measured else []
    try:
        return AsyncLLM.from_engine_args(arguments, stat_loggers=loggers)
    except ValidationError as error:
        raise InvalidArgument(f"engine_args: {error}", field="engine_args") from error
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise FailedPrecondition(
            f"starting vLLM failed: {error} (try other engine_args; for the cause, see vLLM's "
            "log above)"
        ) from error


def vocabulary_of(engine: AsyncLLM) -> SchemaVocabulary:
    """Return the vocabulary that the engine uses to compile JSON schemas."""
    config = engine.vllm_config
    info = xgrammar.TokenizerInfo.from_huggingface(
        cached_tokenizer_from_config(config.model_config),
        vocab_size=config.model_config.get_vocab_size(),
    )
    compact = config.structured_outputs_config.disable_any_whitespace
    return SchemaVocabulary(info.serialize_json(), any_whitespace=not compact)


def _take_rows(mailbox: Mailbox, span: RowSpan, rows: Tensor) -> None:
    mailbox.put(Rows(span.number, span.start, rows))


def _lose_rows(mailbox: Mailbox, number: int) -> None:
    lost = ResourceExhausted(
        "hidden rows were lost, because the stage read them too slowly; increase hidden_row_bytes"
    )
    mailbox.put(Ended(number, lost))
