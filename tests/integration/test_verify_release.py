"""`make verify-release` on a CPU, with tiny checkpoints of every family that it knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen2_5_omni import PIPELINE as OMNI25
from antiphon.runtime.engine import InputChunk, LoadedStage
from antiphon.values.history import History
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.drive_engine import SegmentOutput
from antiphon_testkit.mimo_audio.tiny_checkpoint import LANGUAGE_MODEL, build_tiny_mimo
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint as build_omni25
from antiphon_testkit.qwen3_omni.tiny_checkpoint import SMALL
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint as build_omni3
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from antiphon_tools.verify_release import __main__ as command
from antiphon_tools.verify_release import served
from antiphon_tools.verify_release.__main__ import IN_DOUBT, NOTHING, main
from antiphon_tools.verify_release.answers import Truth
from antiphon_tools.verify_release.forced import (
    answer,
    code_figures,
    greedy,
    made_codes,
    question_input,
    text_figures,
)
from antiphon_tools.verify_release.questions import QUESTIONS
from antiphon_tools.verify_release.report import VerificationReport
from antiphon_tools.warm.launcher import WarmLauncher

FEW = ("--questions", "1", "--tokens", "8", "--frames", "5", "--context", "256")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    build_omni3(folder / "omni3", SMALL)
    build_omni25(folder / "omni25")
    build_tiny_tts(folder / "tts")
    build_tiny_mimo(folder / "mimo")
    build_tiny_ming(folder / "ming")
    return folder


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "Launcher", WarmLauncher)


def verify(model: Path, out: Path, *others: str) -> tuple[int, dict[str, Any]]:
    status = main(["--model", str(model), "--out", str(out), "--device", "cpu", *FEW, *others])
    return status, json.loads((out / "report.json").read_text())


def check_equal(report: dict[str, Any], *, text: bool = True) -> None:
    assert report["doubts"] == []
    if text:
        assert report["text"]["agreement"] == 1.0
        assert report["text"]["places"] == report["reference"]["tokens"] > 0
        assert 0.0 < report["text"]["largest_logprob_difference"] < 1e-3
        assert report["text"]["logprobs_compared"] >= 20
    assert report["codes"] == {
        "frames": report["reference"]["frames"],
        "first_code_agreement": 1.0,
        "equal_codes": 1.0,
    }
    assert report["codes"]["frames"] > 0
    assert report["audio"]["largest_error"] < 1e-4


def test_omni3_equals_its_reference_speaks_and_hears_itself(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = verify(checkpoints / "omni3", tmp_path, "--spoken-frames", "8")
    assert status == 0
    check_equal(report)
    assert report["reference"]["reference"].startswith("transformers, Qwen3OmniMoe")
    assert report["checkpoint"]["tensors"] > 100
    assert report["speed"]["answers"] == 1
    assert report["speed"]["first_audio_ms"]["median"] > 0.0
    assert report["speed"]["real_time_factor"] > 0.0
    assert report["hearing"]["transcriber"] == "omni3"
    [answer] = report["hearing"]["answers"]
    assert answer["said"]
    assert report["hearing"]["mean_word_error_rate"] == answer["word_error_rate"]
    # Progress is shown, and the report is there to read; neither has a path of this machine.
    shown = capsys.readouterr().out
    assert "thinker: loading" in shown
    assert "spoken answer 1 of 1" in shown
    readable = (tmp_path / "report.md").read_text()
    assert "## Text, given the reference's answer" in readable
    assert "| agreement | 1 |" in readable
    for text in (readable, json.dumps(report)):
        assert str(checkpoints) not in text


def test_omni25_equals_its_reference(checkpoints: Path, tmp_path: Path) -> None:
    status, report = verify(checkpoints / "omni25", tmp_path, "--compared-only")
    assert status == 0
    check_equal(report)
    assert "speed" not in report


def test_tts_equals_float32_and_says_that_it_hears_nothing(
    checkpoints: Path, tmp_path: Path
) -> None:
    status, report = verify(checkpoints / "tts", tmp_path)
    assert status == 0
    check_equal(report, text=False)
    assert "text" not in report
    assert "--transcriber DIR" in report["hearing"]["not_measured"]
    assert report["speed"]["answers"] == 1


def test_mimo_equals_float32_in_text_and_frames_and_hears_itself(
    checkpoints: Path, tmp_path: Path
) -> None:
    """Its talker makes both."""
    model = checkpoints / "mimo" / LANGUAGE_MODEL
    status, report = verify(model, tmp_path, "--frames", "24", "--spoken-frames", "64")
    assert status == 0
    assert report["doubts"] == []
    assert report["text"]["agreement"] == 1.0
    assert report["text"]["places"] == report["reference"]["tokens"] > 0
    assert report["codes"] == {
        "frames": report["reference"]["frames"],
        "first_code_agreement": 1.0,
        "equal_codes": 1.0,
    }
    assert report["codes"]["frames"] > 0
    assert report["audio"]["largest_error"] < 1e-4
    assert report["speed"]["answers"] == 1
    assert report["hearing"]["transcriber"] == LANGUAGE_MODEL


def test_frames_that_differ_from_the_references_are_counted(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = command.ask_reference

    def another(*given: Any) -> list[Any]:
        [answer] = ask(*given)
        codes = answer.codes.copy()
        codes[0, 0] += 1
        return [replace(answer, codes=codes)]

    monkeypatch.setattr(command, "ask_reference", another)
    for model, frames in (("ming", "3"), (f"mimo/{LANGUAGE_MODEL}", "24")):
        *_, report = verify(
            checkpoints / model,
            tmp_path / model,
            *("--compared-only", "--frames", frames, "--context", "1024"),
        )
        figures = report["codes"]
        if model == "ming":
            assert figures["largest_error"] >= 0.99
            assert figures["frames_made"] == figures["frames"]
        else:
            assert figures["first_code_agreement"] < 1.0
            assert figures["equal_codes"] < 1.0


def test_latents_equal_float32(checkpoints: Path, tmp_path: Path) -> None:
    status, report = verify(
        checkpoints / "ming", tmp_path, "--spoken-frames", "3", "--context", "1024"
    )
    assert status == 0
    frames = report["reference"]["frames"]
    assert report["codes"]["frames_made"] == report["codes"]["frames"] == frames > 0
    assert report["codes"]["largest_error"] < 1e-4
    assert report["audio"]["largest_error"] < 1e-4
    assert report["speed"]["audio_s"] > 0
    assert "--transcriber DIR" in report["hearing"]["not_measured"]


def test_another_checkpoint_transcribes(checkpoints: Path, tmp_path: Path) -> None:
    status, report = verify(
        checkpoints / "tts",
        tmp_path,
        *("--served-only", "--spoken-frames", "8"),
        *("--transcriber", str(checkpoints / "omni3")),
    )
    assert status == 0
    assert report["hearing"]["transcriber"] == "omni3"
    assert report["hearing"]["answers"][0]["said"] == "The river is quiet early in the morning."


def test_bfloat16_is_compared_with_bfloat16(checkpoints: Path, tmp_path: Path) -> None:
    _, report = verify(checkpoints / "omni3", tmp_path, "--compared-only", "--dtype", "bfloat16")
    assert report["reference"]["dtype"] == "bfloat16"
    assert report["text"]["places"] > 0
    # The decoder is served in float32, and is compared in it.
    assert report["audio"]["largest_error"] < 1e-4


def test_other_choices_are_in_doubt_where_the_reference_was_clear(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = command.ask_reference

    def another(*given: Any) -> list[Any]:
        [answer] = ask(*given)
        ids = answer.ids.copy()
        ids[2] = (ids[2] + 1) % 100
        gaps = np.full_like(answer.gaps, 3.0)
        return [replace(answer, ids=ids, gaps=gaps)]

    monkeypatch.setattr(command, "ask_reference", another)
    status, report = verify(checkpoints / "omni3", tmp_path, "--compared-only")
    assert status == IN_DOUBT
    assert report["text"]["equal"] < report["text"]["places"]
    assert "the reference's choice was clear (a gap of up to 3.00" in report["doubts"][0]


def test_each_place_is_asked_after_the_references_answer_and_not_after_its_own(
    checkpoints: Path,
) -> None:
    """A wrong first id and a wrong first frame, and what the model makes of each."""
    model = checkpoints / "omni25"
    config = StageConfig(slots=8, context_limit=256, engine="torch")
    given = question_input(QUESTIONS[0])
    thinker = load_stage(OMNI25, "thinker", model, config)
    free = _answer(thinker, "thinker", given, 8, History())
    ids = free.tensors("text")["ids"]
    wrong = np.array([40 if ids[0] != 40 else 41, 0], np.int32)
    ids = _answer(thinker, "thinker", given, 8, History(ids=wrong)).tensors("text")["ids"]
    assert ids[0] == wrong[0]
    assert ids[1] != free.tensors("text")["ids"][1]
    none = np.zeros((len(ids), 20))
    truth = Truth(
        QUESTIONS[0],
        ids.astype(np.int32),
        none.astype(np.int32),
        none.astype(np.float32),
        np.ones(len(ids), np.float32),
        np.empty((0, 1), np.uint16),
        np.empty(0, np.float32),
    )
    told = text_figures(thinker, OMNI25, "thinker", [truth], 8)
    assert (told["places"], told["equal"]) == (len(ids), len(ids) - 1)

    talker = load_stage(OMNI25, "talker", model, config)
    heard = free.inputs_of(OMNI25, "talker")
    own = made_codes(_answer(talker, "talker", heard, 7, History()))
    first = (own[:1] + 1) % 8
    codes = made_codes(_answer(talker, "talker", heard, 7, History(frames=first)))
    assert codes[0] == first[0]
    assert codes[1] != own[1]
    figures = code_figures(talker, OMNI25, "talker", [(codes, heard)], 8)
    assert figures["frames"] == len(codes)
    assert figures["first_code_agreement"] == round(1 - 1 / len(codes), 4)


def _answer(
    stage: LoadedStage, role: str, inputs: Sequence[InputChunk], most: int, history: History
) -> SegmentOutput:
    return answer(stage.engine, greedy(stage, OMNI25, role, most, history=history), inputs)


def test_tensor_that_is_missing_is_named_before_the_reference_answers(
    checkpoints: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for each in (checkpoints / "omni3").iterdir():
        (broken / each.name).write_bytes(each.read_bytes())
    index = broken / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    name = next(each for each in listed["weight_map"] if each.startswith("talker.codec_head"))
    path = broken / listed["weight_map"].pop(name)
    with safe_open(path, framework="pt") as file:
        names = set(file.keys()) - {name}
        kept = {each: file.get_tensor(each) for each in names}
    save_file(kept, path, {"format": "pt"})
    index.write_text(json.dumps(listed))
    status, report = verify(broken, tmp_path / "out", "--compared-only")
    assert status == IN_DOUBT
    assert name in report["stages"]["error"]
    assert report["doubts"][0].startswith("stages: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nowhere", "--device", "cpu"], "nowhere"),
        (["--model", "nowhere", "--device", "cuda:99"], "requires a GPU"),
    ],
)
def test_command_says_what_it_needs(
    arguments: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == NOTHING
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--stage-device", "vocoder=cpu"],
            "--stage-device: unknown stage vocoder; use one of: thinker, ",
        ),
        (["--device", "gpu"], "--device: unknown device 'gpu'"),
        (["--reference-device", "cuda:99"], "--reference-device: requires a GPU"),
        (["--stage-device", "talker=cuda:99"], "--stage-device: requires a GPU"),
        (
            ["--transcriber", "nowhere"],
            "nowhere: not a checkpoint directory: config.json is missing",
        ),
    ],
)
def test_command_refuses_options_before_it_loads_a_stage(
    arguments: Sequence[str],
    said: str,
    checkpoints: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = ["--model", str(checkpoints / "omni3"), "--out", str(tmp_path / "out")]
    assert main([*model, "--device", "cpu", *arguments]) == NOTHING
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "option", ["--tokens", "--frames", "--spoken-frames", "--context", "--threads"]
)
@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many"])
def test_amounts_are_whole_numbers_from_one(
    option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--model", "nowhere", option, number])
    assert ended.value.code == NOTHING
    said = capsys.readouterr().err
    assert f"argument {option}: {number!r}: must be an integer of at least 1" in said


def test_checkpoint_without_speech_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_omni3(tmp_path / "thinking", replace(SMALL, speaks=False))
    assert main(["--model", str(tmp_path / "thinking"), "--device", "cpu"]) == NOTHING
    assert "only generates text" in capsys.readouterr().err


def test_the_talker_of_a_family_that_cannot_be_verified_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"architectures": ["BailingMM2NativeForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert main(["--model", str(tmp_path), "--device", "cpu"]) == NOTHING
    said = capsys.readouterr().err
    assert said.endswith(f"not ming_flash_omni; to verify its talker, use {tmp_path}/talker\n")


def test_report_is_whole_after_every_section(tmp_path: Path) -> None:
    report = VerificationReport(tmp_path / "report.json", {"gpu": "a | b"})
    report.add("text", {"agreement": 0.98765, "gaps": [0.5, 0.25]})
    report.add("codes", {"error": "no memory"})
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["doubts"] == ["codes: no memory"]
    readable = (tmp_path / "report.md").read_text()
    assert "| gpu | a \\| b |" in readable
    assert "| agreement | 0.9877 |\n| gaps | 0.5; 0.25 |" in readable
    assert "- codes: no memory" in readable
