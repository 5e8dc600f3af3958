"""Commands that start a model take its id on the hub, as `antiphon serve` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import FailedPrecondition, NotFound
from antiphon_tools.chaos import __main__ as chaos
from antiphon_tools.hub.deployment import LocalModel, local_model
from antiphon_tools.hub.settings import HubSettings
from antiphon_tools.load.options import read_options
from antiphon_tools.verify_release import __main__ as verify
from tests.loopback_hub import COMMIT, LoopbackHub
from tests.unit.tools.hub.made_repository import MODEL


def test_an_id_is_downloaded_and_a_directory_stays(settings: HubSettings, tmp_path: Path) -> None:
    found = local_model(MODEL, settings)
    assert found.directory.name == COMMIT
    assert (found.directory / "model-00001-of-00002.safetensors").is_file()
    assert found.pipeline == "qwen3_tts"
    assert local_model(str(tmp_path), settings) == LocalModel(tmp_path)


def test_a_model_of_two_repositories_is_refused_with_a_remedy(
    hub: LoopbackHub, settings: HubSettings
) -> None:
    folder = hub.repositories[MODEL]
    (folder / "config.json").write_text('{"architectures": ["MiMoAudioForCausalLM"]}')
    hub.repositories = {MODEL: folder, "XiaomiMiMo/MiMo-Audio-Tokenizer": folder}
    with pytest.raises(FailedPrecondition, match="requires a second repository"):
        local_model(MODEL, settings)


def test_load_chaos_and_verify_ask_the_hub(
    hub: LoopbackHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    asked = ["--model", "acme/None", "--cache", str(tmp_path / "cache")]
    with pytest.raises(NotFound, match="has no model acme/None"):
        read_options(["gateway", *asked])
    assert chaos.main(asked) == 1
    assert "has no model acme/None" in capsys.readouterr().err
    assert verify.main([*asked, "--device", "cpu"]) == verify.NOTHING
    assert "has no model acme/None" in capsys.readouterr().err
