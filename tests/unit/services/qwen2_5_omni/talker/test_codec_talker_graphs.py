"""The talker's layers replayed as graphs, with codes read before and after the next step."""

from dataclasses import replace

import pytest
import torch

from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen2_5_omni import CODES
from antiphon.runtime.engine import Engine
from antiphon.values.segment import SegmentKey
from antiphon_services.qwen2_5_omni.talker.load import load
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import run_segments
from antiphon_testkit.flat_settings import stage_config
from tests.replayed_graphs import ReplayPool
from tests.unit.services.qwen2_5_omni.talker.codec_talker_lab import GREEDY, SAMPLED, Lab, settings

PROMPTS = ("Tell me about water.", "Count the days", "find the number")
SLOTS = 6


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def launch_ahead(request: pytest.FixtureRequest) -> bool:
    ahead: bool = request.param
    return ahead


def codes_of(engine: Engine, lab: Lab) -> list[list[int]]:
    """Of segments of different lengths, greedy and sampled in turn."""
    inputs = {}
    for at in range(SLOTS):
        question = lab.ask(conversation(("user", PROMPTS[at % len(PROMPTS)])))
        sampling = replace(SAMPLED if at % 2 else GREEDY, seed=at, max_tokens=5 + 7 * at)
        inputs[SegmentKey("asked", at)] = (settings(sampling=sampling), question.chunks())
    outputs = run_segments(engine, inputs)
    assert all(each.completed for each in outputs.values())
    return [each.tensors(CODES)["codes"][:, 0].tolist() for each in outputs.values()]


def test_codes_equal_the_plain_paths_when_graphs_write_where_they_wrote_before(
    lab: Lab, launch_ahead: bool
) -> None:
    pool = ReplayPool()
    replayed = codes_of(lab.engine(slots=SLOTS, bucketing=pool), lab)
    # One graph between two attentions, for buckets of four and of six rows.
    layers = len(lab.reference.model.talker.model.layers)
    assert len(pool.graphs) == 2 * (layers + 1)
    lab.launch_ahead = False
    assert replayed == codes_of(lab.engine(slots=SLOTS), lab)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("graphs", "ahead"), [(True, False), (False, True), (True, True)])
def test_codes_are_the_same_when_a_gpu_replays_graphs_or_launches_ahead(
    lab: Lab, graphs: bool, ahead: bool
) -> None:
    common = {"device": "cuda", "dtype": "float32", "slots": SLOTS}
    ways = stage_config(**common), stage_config(**common, graphs=graphs, launch_ahead=ahead)
    plain, other = (load(lab.directory, way).engine for way in ways)
    assert codes_of(other, lab) == codes_of(plain, lab)


def test_load_is_refused_when_a_gpu_has_no_copies_beside_its_work(lab: Lab) -> None:
    config = stage_config(device="cuda", launch_ahead=True, async_to_host=False)
    with pytest.raises(InvalidArgument, match=r"set copies\.async_to_host to true") as caught:
        load(lab.directory, config)
    assert caught.value.field == "torch.launch_ahead"
