"""What is replayed of a call, and that it asks the device for nothing."""

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from antiphon.pipelines.qwen2_5_omni import AUDIO, CODES
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason
from antiphon_services.lm.graphs import Bucketing, Eager, RowFunction
from antiphon_services.qwen2_5_omni.token2wav.blocks import BlockPlan
from antiphon_services.qwen2_5_omni.token2wav.decoder import Token2Wav
from antiphon_services.qwen2_5_omni.token2wav.flow_graphs import ReplayedPlan
from antiphon_services.qwen2_5_omni.token2wav.load import ONLY_SEED, load
from antiphon_services.qwen2_5_omni.token2wav.solver import EVALUATIONS
from antiphon_services.qwen2_5_omni.token2wav.vocoder import stream_lengths
from antiphon_testkit.drive_engine import run_segment
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.graph_watch import GraphWatch
from tests.unit.services.qwen2_5_omni.token2wav.token2wav_rig import (
    TOLERANCE,
    Rig,
    difference,
    speech,
)


class Watched:
    """A bucketing that notes the rows of each run, by function, and watches it."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.watch = GraphWatch()

    def __call__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> RowFunction:
        runs: list[int] = []
        self.runs.append(runs)

        def watched(*rows: Tensor) -> tuple[Tensor, ...]:
            runs.append(len(rows[0]))
            with self.watch:
                return function(*rows)

        return Eager(watched, buffers, least)


def test_calls_of_a_stream_ask_the_device_for_nothing_when_replayed(rig: Rig) -> None:
    watched, wanted = Watched(), speech(70)
    rig.ours = Token2Wav(rig.module, rig.voices, watched)
    made = rig.streamed(wanted, (1,))
    assert difference(made, rig.truth(wanted)) < TOLERANCE
    assert watched.watch.seen > 100
    assert watched.watch.unfit == []
    # All evaluations of each call of the flow, and calls of the vocoder.
    flow, *vocoder = watched.runs
    assert flow
    assert len(flow) % EVALUATIONS == 0
    assert any(vocoder)


@pytest.mark.parametrize("bucketing", [None, Eager], ids=["eager", "replayed"])
def test_call_of_the_flow_leaves_no_memory_to_the_garbage_collector(
    rig: Rig, bucketing: Bucketing | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[weakref.ref[object]] = []

    def watch(plan_class: type) -> None:
        plain = plan_class.__init__

        def noted(self: object, *args: object) -> None:
            plans.append(weakref.ref(self))
            plain(self, *args)

        monkeypatch.setattr(plan_class, "__init__", noted)

    watch(BlockPlan)
    watch(ReplayedPlan)
    rig.ours = Token2Wav(rig.module, rig.voices, bucketing)
    gc.collect()
    gc.disable()
    try:
        rig.streamed(speech(60), (20,))
        assert plans
        assert [each for each in plans if each() is not None] == []
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("block", "lengths"), [(24, [24, 48, 64]), (48, [48, 88]), (8, [24, 32, 40, 48])]
)
def test_windows_of_a_stream_have_few_lengths(block: int, lengths: list[int]) -> None:
    assert stream_lengths(block) == lengths


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_audio_is_the_same_when_a_gpu_replays_graphs(omni25_directory: Path) -> None:
    codes = speech(70).codes.numpy().astype("uint16")[:, None]
    chunks = [InputChunk(CODES, at, {CODES: codes[at : at + 5]}) for at in range(0, len(codes), 5)]
    end = InputChunk(CODES, len(codes), {}, True, FinishReason.STOP)
    plain, replayed = (
        torch.from_numpy(
            run_segment(
                load(omni25_directory, stage_config(device="cuda", graphs=graphs)).engine,
                SegmentSettings("", ONLY_SEED, frozenset({AUDIO})),
                [*chunks, end],
            ).tensors(AUDIO)["samples"]
        )
        for graphs in (False, True)
    )
    assert difference(replayed, plain) < TOLERANCE
