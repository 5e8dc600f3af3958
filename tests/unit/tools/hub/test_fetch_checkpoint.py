"""Checkpoints of the hub, from a server with its API that runs in this process."""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.errors import (
    DataLoss,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from antiphon_tools.hub.checkpoint import fetch_checkpoint
from antiphon_tools.hub.download import RETRIES
from antiphon_tools.hub.hub_id import HubId
from antiphon_tools.hub.settings import HubSettings
from antiphon_tools.launcher.plan import CHECKOUT, import_path
from antiphon_tools.launcher.preflight import check_checkpoint
from tests.loopback_hub import COMMIT, LoopbackHub
from tests.unit.tools.hub.made_repository import MODEL, READ

VOICE = HubId(MODEL)
SHARD = "model-00001-of-00002.safetensors"
FilesOf = Callable[[Path], set[str]]


def test_what_stages_read_is_downloaded_and_nothing_else(
    hub: LoopbackHub, settings: HubSettings, files_of: FilesOf
) -> None:
    folder = fetch_checkpoint(VOICE, settings)
    assert files_of(folder) == READ
    for name in READ:
        assert (folder / name).read_bytes() == (hub.repositories[MODEL] / name).read_bytes()
    check_checkpoint(folder)


def test_a_second_start_downloads_nothing(hub: LoopbackHub, settings: HubSettings) -> None:
    folder = fetch_checkpoint(VOICE, settings)
    hub.asked.clear()
    assert fetch_checkpoint(VOICE, settings) == folder
    assert [each.path for each in hub.asked] == [f"/api/models/{MODEL}/revision/main"]


def test_the_token_goes_to_the_hub_and_not_to_the_host_of_a_redirect(
    hub: LoopbackHub, settings: HubSettings
) -> None:
    hub.token = "secret"
    fetch_checkpoint(VOICE, replace(settings, token="secret"))
    stored = [each for each in hub.asked if each.path.startswith("/stored/")]
    assert {each.host for each in stored} == {"127.0.0.2"}
    assert {each.authorization for each in stored} == {None}
    others = [each for each in hub.asked if each not in stored]
    assert {each.authorization for each in others} == {"Bearer secret"}


def test_a_cut_download_continues_at_the_same_byte(hub: LoopbackHub, settings: HubSettings) -> None:
    hub.cuts[SHARD] = [100_000, 1, 50_000]
    folder = fetch_checkpoint(VOICE, settings)
    assert (folder / SHARD).read_bytes() == (hub.repositories[MODEL] / SHARD).read_bytes()
    starts = [each.range for each in hub.asked_for(SHARD) if each.path.startswith("/stored/")]
    assert starts == [None, "bytes=100000-", "bytes=100001-", "bytes=150001-"]


def test_a_download_that_was_given_up_continues_at_the_next_start(
    hub: LoopbackHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon_tools.hub.download.LONGEST_PAUSE_S", 0.0)
    hub.cuts[SHARD] = [100_000, *[0] * (RETRIES + 1)]
    with pytest.raises(Unavailable, match="the next start continues after 100000 bytes"):
        fetch_checkpoint(VOICE, settings)
    assert not hub.cuts[SHARD]
    hub.asked.clear()
    folder = fetch_checkpoint(VOICE, settings)
    starts = [each.range for each in hub.asked_for(SHARD) if each.path.startswith("/stored/")]
    assert starts == ["bytes=100000-"]
    assert (folder / SHARD).read_bytes() == (hub.repositories[MODEL] / SHARD).read_bytes()


def test_a_hub_that_is_busy_is_asked_again(
    hub: LoopbackHub, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon_tools.hub.download.LONGEST_PAUSE_S", 0.0)
    hub.statuses[SHARD] = [500, 503, 429, 408, 504]
    check_checkpoint(fetch_checkpoint(VOICE, settings))
    hub.statuses["model-00002-of-00002.safetensors"] = [404]
    with pytest.raises(Unavailable, match="responded with status 404"):
        fetch_checkpoint(VOICE, replace(settings, cache=settings.cache_dir / "other"))


def test_a_server_without_ranges_sends_the_file_again(
    hub: LoopbackHub, settings: HubSettings
) -> None:
    hub.cuts[SHARD], hub.ranges = [100_000], False
    check_checkpoint(fetch_checkpoint(VOICE, settings))


def test_a_damaged_file_is_refused_and_downloaded_again(
    hub: LoopbackHub, settings: HubSettings, files_of: FilesOf
) -> None:
    hub.damaged = SHARD
    with pytest.raises(DataLoss, match=f"acme/Voice-1@main: {SHARD}: 300081 bytes .* checksum"):
        fetch_checkpoint(VOICE, settings)
    with pytest.raises(NotFound):
        fetch_checkpoint(VOICE, replace(settings, offline=True))
    hub.damaged = ""
    hub.asked.clear()
    assert files_of(fetch_checkpoint(VOICE, settings)) == READ
    # Nothing damaged was kept.
    starts = [each.range for each in hub.asked_for(SHARD) if each.path.startswith("/stored/")]
    assert starts == [None]


def test_a_damaged_small_file_is_refused(hub: LoopbackHub, settings: HubSettings) -> None:
    from antiphon_tools.hub.download import digest_of

    path = hub.repositories[MODEL] / "merges.txt"
    # As `git hash-object` prints it.
    assert digest_of(path, git=True) == "5e7f1fd94996c8e2b65adea828af1b398eace61f"


@pytest.mark.parametrize("token", ["", "of someone else"])
def test_a_gated_model_says_how_to_get_access(
    hub: LoopbackHub, settings: HubSettings, token: str
) -> None:
    hub.gated = True
    with pytest.raises(FailedPrecondition, match="acme/Voice-1@main is gated; request access at"):
        fetch_checkpoint(VOICE, replace(settings, token=token))
    assert not hub.asked_for(SHARD)


def test_a_token_that_is_not_accepted_is_named_and_not_shown(
    hub: LoopbackHub, settings: HubSettings
) -> None:
    hub.token = "right"
    with pytest.raises(FailedPrecondition, match="rejected the token") as caught:
        fetch_checkpoint(VOICE, replace(settings, token="wrong-one"))
    assert "wrong-one" not in str(caught.value)


def test_a_model_that_is_not_there_is_named_with_its_revision(settings: HubSettings) -> None:
    with pytest.raises(NotFound, match=r"has no model acme/Nothing \(revision v2\)"):
        fetch_checkpoint(HubId("acme/Nothing", "v2"), settings)
    with pytest.raises(NotFound, match="acme/Voice-1 has no revision v2"):
        fetch_checkpoint(HubId(MODEL, "v2"), settings)


def test_a_model_that_no_pipeline_serves_is_refused_before_its_weights_come(
    hub: LoopbackHub, settings: HubSettings
) -> None:
    (hub.repositories[MODEL] / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(FailedPrecondition, match=r"acme/Voice-1@main: .*'LlamaForCausalLM'"):
        fetch_checkpoint(VOICE, settings)
    assert {each.path.rpartition("/")[2] for each in hub.asked} == {"main", "config.json"}


def test_a_repository_without_config_is_refused(hub: LoopbackHub, settings: HubSettings) -> None:
    (hub.repositories[MODEL] / "config.json").unlink()
    with pytest.raises(NotFound, match=r"acme/Voice-1@main: .*config\.json is missing"):
        fetch_checkpoint(VOICE, settings)


def test_a_model_larger_than_the_disk_is_refused_before_it_comes(
    hub: LoopbackHub, settings: HubSettings
) -> None:
    def enlarged(listed: dict[str, object]) -> dict[str, object]:
        siblings = listed["siblings"]
        assert isinstance(siblings, list)
        return listed | {"siblings": [each | {"size": 10**18} for each in siblings]}

    hub.listing = enlarged
    with pytest.raises(
        ResourceExhausted, match=r"requires 3000000000\.1 GB, but only .* are available; free"
    ):
        fetch_checkpoint(VOICE, settings)
    assert not hub.asked_for(SHARD)


def test_a_disk_that_is_full_is_an_error_that_names_the_folder(
    hub: LoopbackHub, settings: HubSettings
) -> None:
    program = f"""
import resource, sys
from pathlib import Path
from antiphon_tools.hub.checkpoint import fetch_checkpoint
from antiphon_tools.hub.hub_id import HubId
from antiphon_tools.hub.settings import HubSettings
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
fetch_checkpoint(HubId("{MODEL}"), HubSettings(cache=Path(sys.argv[1]), endpoint=sys.argv[2]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(settings.cache_dir), hub.url],
        env={"PYTHONPATH": import_path(CHECKOUT), "HOME": str(settings.cache_dir)},
        capture_output=True,
        text=True,
    )
    assert (
        f"ResourceExhausted: {settings.cache_dir}: there is not enough space to download {VOICE}"
        in ran.stderr
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    # What had come is kept.
    hub.asked.clear()
    fetch_checkpoint(VOICE, settings)
    # Files are downloaded in parallel: any of the large ones may have met the limit first.
    assert any(each.range for each in hub.asked)


def test_offline_the_cache_is_read_alone(hub: LoopbackHub, settings: HubSettings) -> None:
    offline = replace(settings, offline=True)
    with pytest.raises(NotFound, match="acme/Voice-1@main is not in the cache"):
        fetch_checkpoint(VOICE, offline)
    folder = fetch_checkpoint(VOICE, settings)
    hub.asked.clear()
    assert fetch_checkpoint(VOICE, offline) == folder
    assert fetch_checkpoint(HubId(MODEL, COMMIT), offline) == folder
    assert not hub.asked


@pytest.mark.parametrize("lost", [SHARD, "speech_tokenizer/model.safetensors"])
def test_offline_an_incomplete_checkpoint_is_refused(settings: HubSettings, lost: str) -> None:
    (fetch_checkpoint(VOICE, settings) / lost).unlink()
    with pytest.raises(FailedPrecondition, match="acme/Voice-1@main"):
        fetch_checkpoint(VOICE, replace(settings, offline=True))


def test_a_hub_that_is_down_is_no_error_if_the_cache_has_the_model(
    settings: HubSettings, shown: io.StringIO
) -> None:
    folder = fetch_checkpoint(VOICE, settings)
    # Nothing listens at the discard port.
    away = replace(settings, endpoint="http://127.0.0.1:9")
    assert fetch_checkpoint(VOICE, away) == folder
    assert "can't reach http://127.0.0.1:9" in shown.getvalue()
    with pytest.raises(Unavailable, match=r"can't reach http://127\.0\.0\.1:9: .*HF_ENDPOINT"):
        fetch_checkpoint(VOICE, replace(away, cache=settings.cache_dir / "empty"))


def test_an_endpoint_that_is_no_hub_is_named(hub: LoopbackHub, settings: HubSettings) -> None:
    hub.listing = lambda listed: {"hello": "world"}
    with pytest.raises(
        FailedPrecondition, match=f"{hub.url} did not respond like the Hugging Face hub"
    ):
        fetch_checkpoint(VOICE, settings)


def test_a_terminal_shows_a_bar_and_others_lines(
    hub: LoopbackHub, settings: HubSettings, shown: io.StringIO
) -> None:
    fetch_checkpoint(VOICE, settings)
    lines = shown.getvalue().splitlines()
    assert lines[0] == "acme/Voice-1@main: downloading 600.2 kB"
    assert lines[-1].startswith("acme/Voice-1@main: downloaded in ")
    assert 2 < len(lines) <= 22
    assert all(" of 600.2 kB" in each and each.endswith(" left") for each in lines[1:-1])
    assert "\r" not in shown.getvalue()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    fetch_checkpoint(VOICE, replace(settings, stream=terminal, cache=settings.cache_dir / "2"))
    assert "\racme/Voice-1@main: 100%" in terminal.getvalue()
    assert "600k/600k" in terminal.getvalue()


def test_a_second_process_waits_for_the_first_and_downloads_nothing(
    hub: LoopbackHub, settings: HubSettings
) -> None:
    program = f"""
import sys
from pathlib import Path
from antiphon_tools.hub.checkpoint import fetch_checkpoint
from antiphon_tools.hub.hub_id import HubId
from antiphon_tools.hub.settings import HubSettings
settings = HubSettings(cache=Path(sys.argv[1]), endpoint=sys.argv[2])
print(fetch_checkpoint(HubId("{MODEL}"), settings))
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(settings.cache_dir), hub.url],
            env={"PYTHONPATH": import_path(CHECKOUT), "HOME": str(settings.cache_dir)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    printed = {each.communicate()[0] for each in processes}
    assert [each.returncode for each in processes] == [0, 0]
    assert len(printed) == 1
    stored = [each.path for each in hub.asked if each.path.startswith("/stored/")]
    assert len(stored) == len(set(stored)) == 3


@pytest.mark.slow
def test_two_gigabytes_are_cut_and_continued(tmp_path: Path, settings: HubSettings) -> None:
    from tests.loopback_hub import loopback_hub
    from tests.unit.tools.hub.made_repository import write_repository

    folder = write_repository(tmp_path / "large")
    size = 2 << 30
    header = json.dumps(
        {"data": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    ).encode()
    with (folder / SHARD).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        # Sparse: the disk holds nothing of it.
        file.truncate(8 + len(header) + size)
    with loopback_hub({MODEL: folder}) as hub:
        hub.cuts[SHARD] = [1_000_000_000, 200_000, 500_000_000]
        found = fetch_checkpoint(VOICE, replace(settings, endpoint=hub.url))
        assert (found / SHARD).stat().st_size == (folder / SHARD).stat().st_size
        check_checkpoint(found)
        starts = [each.range for each in hub.asked_for(SHARD) if "stored" in each.path]
        cuts = (1_000_000_000, 1_000_200_000, 1_500_200_000)
        assert starts == [None, *(f"bytes={each}-" for each in cuts)]
