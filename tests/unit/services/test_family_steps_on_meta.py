"""What a step of the families' engines asks its device for at the released depths; bounds that only
fall."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from antiphon_testkit.launches import Launches, launches_on_meta, meta_as_a_gpu
from benchmarks.operations import families, models
from benchmarks.operations.families import Step

SLOTS = 16
POSITION = 40


@pytest.fixture(scope="module")
def device() -> Iterator[torch.device]:
    with meta_as_a_gpu() as device:
        yield device


def watch(step: Step, sessions: int) -> Launches:
    with launches_on_meta() as launches:
        step(sessions, POSITION)
    assert launches.waits == launches.on_host == []
    return launches


@pytest.fixture(scope="module")
def omni25_thinker(device: torch.device) -> Step:
    return families.thinker_step(models.omni25_thinker(device, slots=SLOTS))


@pytest.mark.parametrize(("sessions", "most"), [(1, 488), (16, 492)])
def test_omni25_thinker_waits_for_nothing(omni25_thinker: Step, sessions: int, most: int) -> None:
    launches = watch(omni25_thinker, sessions)
    assert 10 * models.OMNI25.layers < launches.total <= most, launches.counts


@pytest.fixture(scope="module")
def omni25_talker(device: torch.device) -> Step:
    return families.omni25_talker_step(models.omni25_talker(device, slots=SLOTS))


@pytest.mark.parametrize(("sessions", "most"), [(4, 466), (16, 466)])
def test_omni25_talker_waits_for_nothing_when_it_draws(
    omni25_talker: Step, sessions: int, most: int
) -> None:
    launches = watch(omni25_talker, sessions)
    assert 10 * models.OMNI25.talker_layers < launches.total <= most, launches.counts


@pytest.mark.parametrize(("utterances", "most"), [(1, 356), (4, 386)])
def test_flow_waits_for_nothing_in_an_evaluation(
    device: torch.device, utterances: int, most: int
) -> None:
    shape = models.OMNI25
    flow = models.omni25_flow(device)
    step = families.omni25_flow_step(flow, shape.speaker_width, shape.flow_layers)
    launches = watch(step, utterances)
    assert 10 * shape.flow_layers < launches.total <= most, launches.counts


@pytest.mark.parametrize(("mels", "most"), [(1, 1842), (4, 1845)])
def test_omni25_vocoder_waits_for_nothing(
    device: torch.device, mels: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = families.omni25_vocoder_step(models.omni25_vocoder(device))
    # With a device it waits, out of sight of any mode.
    monkeypatch.delattr(torch, "tensor")
    launches = watch(step, mels)
    assert 100 < launches.total <= most, launches.counts


@pytest.fixture(scope="module")
def tts_talker(device: torch.device) -> Step:
    return families.tts_talker_step(models.tts_talker(device, slots=SLOTS))


@pytest.mark.parametrize(("sessions", "most"), [(4, 2212), (16, 2212)])
def test_tts_talker_waits_for_nothing_when_it_draws(
    tts_talker: Step, sessions: int, most: int
) -> None:
    launches = watch(tts_talker, sessions)
    layers = models.TTS.layers + 15 * models.TTS.predictor_layers
    assert 10 * layers < launches.total <= most, launches.counts


@pytest.mark.parametrize(("sessions", "most"), [(1, 580), (16, 791)])
def test_tts_code2wav_waits_for_nothing(device: torch.device, sessions: int, most: int) -> None:
    launches = watch(families.code2wav_step(models.tts_code2wav(device), SLOTS), sessions)
    assert 100 < launches.total <= most, launches.counts


@pytest.fixture(scope="module")
def cosy_talker(device: torch.device) -> Step:
    return families.cosy_talker_step(models.cosy_talker(device, slots=SLOTS))


@pytest.mark.parametrize(("sessions", "most"), [(1, 514), (16, 493)])
def test_cosyvoice3_talker_waits_for_nothing_when_it_draws(
    cosy_talker: Step, sessions: int, most: int
) -> None:
    launches = watch(cosy_talker, sessions)
    assert 10 * models.COSY.layers < launches.total <= most, launches.counts


@pytest.mark.parametrize(("sessions", "most"), [(1, 4374), (16, 4341)])
def test_mimo_talker_waits_for_nothing_when_it_draws(
    device: torch.device, sessions: int, most: int
) -> None:
    """Whether a position is a group is not asked either."""
    talker = models.mimo_talker(device, slots=SLOTS)
    launches = watch(families.mimo_talker_step(talker), sessions)
    steps = models.MIMO_STEPS
    layers = models.MIMO.layers + models.MIMO.group_layers + steps * models.MIMO.local_layers
    assert 8 * layers < launches.total <= most, launches.counts


def test_mimo_code2wav_waits_for_nothing(device: torch.device) -> None:
    launches = watch(families.mimo_code2wav_step(models.mimo_code2wav(device)), 1)
    assert 100 < launches.total <= 1382, launches.counts


def test_cosyvoice3_flow_waits_for_nothing_in_an_evaluation(device: torch.device) -> None:
    launches = watch(families.cosy_flow_step(models.cosy_flow(device)), 1)
    assert 10 * models.COSY.flow_layers < launches.total <= 419, launches.counts


def test_cosyvoice3_vocoder_waits_for_nothing(device: torch.device) -> None:
    launches = watch(families.cosy_vocoder_step(models.cosy_vocoder(device)), 1)
    assert 100 < launches.total <= 969, launches.counts
