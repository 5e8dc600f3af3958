"""Options from a request to the engine: checked against what the stage describes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.pipelines.graph import StageSpec
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.session.plan import MAX_OPTIONS
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.options import Option, OptionKind, OptionValue
from antiphon.wire.chunks import chunk_to_proto
from antiphon.wire.options import option_value_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.stage_harness import RunningStage, running_stage
from tests.integration.stage_session import Request, Session, codes_chunk, opening

LANGUAGE = Option("language", OptionKind.TEXT, choices=("english", "german"))
SPEED = Option("speed", OptionKind.NUMBER, least=0.5, most=2.0)
REFERENCE = Option("reference", OptionKind.AUDIO, sample_rate_hz=100, max_s=1.0)
SPEC = StageSpec("code2wav", options=(LANGUAGE, SPEED, REFERENCE))
OTHERS = tuple(stage for stage in PIPELINE.stages if stage.role != SPEC.role)
FAMILY = replace(PIPELINE, stages=(*OTHERS, SPEC))
# The checkpoint speaks one language more.
KNOWN = replace(LANGUAGE, choices=("english", "german", "welsh"))

ErrorCode = session_pb2.ErrorCode


@pytest.fixture
async def served(engine: FakeEngine) -> AsyncIterator[RunningStage]:
    loaded = LoadedStage(engine, replace(FACTS, options=(KNOWN,)))
    async with running_stage(loaded, SPEC.role, pipeline=FAMILY) as running:
        yield running


def turn(values: dict[str, OptionValue], **fields: object) -> Request:
    options = {name: option_value_to_proto(value) for name, value in values.items()}
    segment = session_pb2.SegmentOpen(outputs=["audio"], options=options, **fields)  # type: ignore[arg-type]
    return Request(segment_open=segment)


async def refusal(served: RunningStage, name: str, request: Request) -> session_pb2.SessionError:
    session = Session(served, name)
    await session.send(opening(name)[0], request)
    await session.read("opened")
    return await session.error()


async def test_options_reach_the_engine_with_their_kinds(
    served: RunningStage, engine: FakeEngine
) -> None:
    reference = np.linspace(-1, 1, 100, dtype=np.float32)
    session = Session(served, "said")
    given: dict[str, OptionValue] = {"language": "welsh", "speed": 1.5, "reference": reference}
    end = chunk_to_proto(codes_chunk("said", 0, [1], end=True))
    await session.send(opening("said")[0], turn(given), Request(chunk=end))
    await session.opened()
    await session.audio()
    (settings,) = engine.admitted
    assert (settings.options["language"], settings.options["speed"]) == ("welsh", 1.5)
    np.testing.assert_array_equal(settings.options["reference"], reference)


async def test_options_of_a_request_that_gives_none_are_empty(
    served: RunningStage, engine: FakeEngine
) -> None:
    session = Session(served, "silent")
    end = chunk_to_proto(codes_chunk("silent", 0, [1], end=True))
    await session.send(*opening("silent"), Request(chunk=end))
    await session.opened()
    await session.audio()
    assert [dict(settings.options) for settings in engine.admitted] == [{}]


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"tempo": 1.0}, "options.tempo", "its options are language, speed, reference"),
        ({"language": "latin"}, "options.language", "english, german, welsh"),
        ({"language": 1.0}, "options.language", "must be a string"),
        ({"speed": 3.0}, "options.speed", "from 0.5 to 2"),
        ({"reference": np.zeros(102, np.float32)}, "options.reference", "at most 1 s"),
        ({f"o{n}": "" for n in range(MAX_OPTIONS + 1)}, "options", f"at most {MAX_OPTIONS}"),
    ],
)
async def test_bad_options_are_refused_before_the_engine_sees_the_segment(
    served: RunningStage,
    engine: FakeEngine,
    options: dict[str, OptionValue],
    field: str,
    words: str,
) -> None:
    error = await refusal(served, "bad", turn(options))
    assert (error.code, error.field) == (ErrorCode.ERROR_CODE_INVALID_ARGUMENT, field)
    assert words in error.message
    assert not engine.admitted
    assert served.stage.table.open_segments == 0


async def test_a_stage_that_does_not_sample_passes_over_its_sampling(
    served: RunningStage, engine: FakeEngine
) -> None:
    session = Session(served, "broadcast")
    sampling = {"code2wav": session_pb2.Sampling(temperature=1.5)}
    await session.send(opening("broadcast")[0], turn({}, sampling=sampling))
    await session.opened()


async def test_describe_tells_the_checkpoints_description(served: RunningStage) -> None:
    told = await stage_stub(served.channel).Describe(stage_pb2.DescribeRequest())
    assert [option.name for option in told.options] == ["language", "speed", "reference"]
    assert list(told.options[0].choices) == ["english", "german", "welsh"]


UNDECLARED = """
import sys
from dataclasses import replace
from antiphon.values.options import Option, OptionKind
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server.main import main
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
facts = replace(FACTS, options=(Option("dialect", OptionKind.TEXT),))
sys.exit(main(lambda *_: LoadedStage(FakeEngine(), facts)))
"""


@pytest.mark.processes
async def test_a_stage_does_not_start_when_its_checkpoint_names_an_undeclared_option(
    tmp_path: Path,
) -> None:
    config = {"architectures": list(PIPELINE.architectures)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", UNDECLARED, "code2wav", "--model", str(tmp_path),
        "--listen", "127.0.0.1:0", stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(120):
        _, told = await process.communicate()
    assert process.returncode == 2
    last = told.decode().splitlines()[-1]
    assert last.startswith("code2wav: code2wav: the checkpoint describes the options dialect")
    assert "Traceback" not in told.decode()
