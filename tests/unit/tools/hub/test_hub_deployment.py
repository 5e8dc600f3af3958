"""Ids of the hub in a deployment become directories before anything starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.deployment.schema import Deployment
from antiphon.errors import InvalidArgument
from antiphon_testkit.flat_settings import stage_config
from antiphon_tools.hub.deployment import with_directories
from antiphon_tools.hub.settings import HubSettings
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.unit.tools.hub.made_repository import MODEL, safetensors

MIMO, TOKENIZER = "XiaomiMiMo/MiMo-Audio-7B-Instruct", "XiaomiMiMo/MiMo-Audio-Tokenizer"


def write_mimo(folder: Path) -> dict[str, Path]:
    """The two repositories of MiMo-Audio."""
    repositories = {MIMO: folder / "model", TOKENIZER: folder / "tokenizer"}
    for path, config in (
        (repositories[MIMO], {"architectures": ["MiMoAudioForCausalLM"]}),
        (repositories[TOKENIZER], {"model_type": "mimo_audio_tokenizer"}),
    ):
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config))
        (path / "model.safetensors").write_bytes(safetensors(5000))
    return repositories


def test_a_model_is_served_by_its_id(hub: LoopbackHub, settings: HubSettings) -> None:
    found = with_directories(Deployment(model=MODEL), settings)
    assert (Path(found.model) / "model.safetensors.index.json").is_file()
    assert found.model_name == MODEL
    named = with_directories(Deployment(model=MODEL, model_name="voice"), settings)
    assert named.model_name == "voice"


def test_a_revision_is_that_of_the_id_or_of_the_command_line(
    hub: LoopbackHub, settings: HubSettings
) -> None:
    hub.revisions = ("v1", "v2")
    with_directories(Deployment(model=f"{MODEL}@v1"), settings)
    with_directories(Deployment(model=f"{MODEL}@v1"), replace(settings, revision="v2"))
    listed = [each.path for each in hub.asked if each.path.startswith("/api/")]
    assert listed == [f"/api/models/{MODEL}/revision/{each}" for each in ("v1", "v2")]


@pytest.mark.parametrize("model", ["", "/models/local"])
def test_a_revision_of_no_id_is_refused(settings: HubSettings, model: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--revision v1: .* not a model on the hub"):
        with_directories(Deployment(model=model), replace(settings, revision="v1"))


def test_a_directory_stays_as_it_is(hub: LoopbackHub, settings: HubSettings) -> None:
    deployment = Deployment(model=str(hub.repositories[MODEL]))
    assert with_directories(deployment, settings) == deployment
    assert not hub.asked


def test_a_model_of_two_repositories_comes_with_both(tmp_path: Path, settings: HubSettings) -> None:
    with loopback_hub(write_mimo(tmp_path)) as hub:
        # The revision is the model's.
        hub.revisions = ("main", "v1")
        given = replace(settings, endpoint=hub.url, revision="v1")
        found = with_directories(Deployment(model=MIMO), given)
    folders = {found.stage(role).files.audio_tokenizer_dir for role in ("talker", "code2wav")}
    (folder,) = folders
    assert {each.name for each in Path(folder).iterdir()} == {"config.json", "model.safetensors"}
    listed = [each.path for each in hub.asked if each.path.startswith("/api/")]
    assert listed == [
        f"/api/models/{MIMO}/revision/v1",
        f"/api/models/{TOKENIZER}/revision/main",
    ]


def test_a_second_repository_that_is_named_is_taken(tmp_path: Path, settings: HubSettings) -> None:
    with loopback_hub(write_mimo(tmp_path)) as hub:
        own = stage_config(audio_tokenizer_dir=str(tmp_path / "tokenizer"), slots=3)
        found = with_directories(
            Deployment(model=MIMO, stages={"talker": own}), replace(settings, endpoint=hub.url)
        )
        assert found.stage("talker") == own
        # A local model may name the hub's too.
        stage = stage_config(audio_tokenizer_dir=TOKENIZER)
        local = with_directories(
            Deployment(model=str(tmp_path / "model"), stages={"talker": stage}),
            replace(settings, endpoint=hub.url),
        )
    assert found.stage("code2wav").files.audio_tokenizer_dir
    assert (Path(local.stage("talker").files.audio_tokenizer_dir) / "config.json").is_file()
    assert local.model == str(tmp_path / "model")
