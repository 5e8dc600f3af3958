"""`antiphon serve` with a model of a hub: downloaded before the stages start, then it speaks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI

from antiphon_tools.launcher.plan import CHECKOUT, EMBEDDED_MODEL, import_path
from tests.loopback_hub import loopback_hub

MODEL = "acme/antiphon-demo"
COMMAND = "import sys; from antiphon_tools.command import main; sys.exit(main())"
STOP_S = 240

pytestmark = pytest.mark.processes


def environment(home: Path, url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return kept | {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_TOKEN": "secret",
        "PYTHONPATH": import_path(CHECKOUT),
    }


def test_a_model_of_a_hub_is_downloaded_and_speaks_and_stages_ask_nothing(tmp_path: Path) -> None:
    with loopback_hub({MODEL: CHECKOUT / EMBEDDED_MODEL}) as hub:
        hub.token = "secret"
        with subprocess.Popen(
            [sys.executable, "-c", COMMAND, "serve", MODEL, "--port", "0", "--grpc-port", "0"],
            env=environment(tmp_path, hub.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        ) as process:
            try:
                assert process.stdout is not None
                said = ""
                while "  gRPC  " not in said:
                    line = process.stdout.readline()
                    assert line, said
                    if "started, process" in line and "started, process" not in said:
                        asked = len(hub.asked)
                    said += line
                (url,) = re.findall(r"HTTP  (\S+)", said)
                with OpenAI(base_url=f"{url}/v1", api_key="none") as api:
                    assert api.models.list().data[0].id == MODEL
                    assert api.models.retrieve(MODEL).id == MODEL
                    answer = api.chat.completions.create(
                        model=MODEL,
                        modalities=["text", "audio"],
                        audio={"voice": "cantor", "format": "wav"},
                        messages=[{"role": "user", "content": "What is antiphon?"}],
                    )
                assert answer.choices[0].message.audio is not None
                assert answer.choices[0].message.audio.data
                process.send_signal(signal.SIGINT)
                said += process.stdout.read()
                assert process.wait(STOP_S) == 0, said
            finally:
                process.kill()
        assert f"{MODEL}@main: downloaded in" in said
        assert "secret" not in said
        assert len(hub.asked) == asked
    folder = next((tmp_path / "hub").glob("models--acme--antiphon-demo/snapshots/*"))
    assert f"model {folder}" in said
    # What the repository has for people is not downloaded.
    assert not (folder / "README.md").exists()


def test_an_interrupted_download_says_that_the_next_start_continues(tmp_path: Path) -> None:
    with loopback_hub({MODEL: CHECKOUT / EMBEDDED_MODEL}) as hub:
        hub.stall = "model-00001-of-00004.safetensors"
        with subprocess.Popen(
            [sys.executable, "-c", COMMAND, "serve", MODEL],
            env=environment(tmp_path, hub.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                assert hub.stalled.wait(STOP_S)
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=STOP_S)
            finally:
                process.kill()
        assert process.returncode == 130, said
        assert "interrupted; the next start will continue the download" in said
        assert "Traceback" not in said
        blobs = tmp_path / "hub" / "models--acme--antiphon-demo" / "blobs"
        assert any(each.stat().st_size for each in blobs.glob("*.incomplete"))


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("nowhere", "nowhere is not a directory; use a checkpoint directory, or"),
        ("acme/nothing", "has no model acme/nothing"),
    ],
)
def test_what_is_neither_a_directory_nor_a_model_of_the_hub_is_refused(
    tmp_path: Path, model: str, error: str
) -> None:
    with loopback_hub({}) as hub:
        ran = subprocess.run(
            [sys.executable, "-c", COMMAND, "serve", model],
            env=environment(tmp_path, hub.url),
            capture_output=True,
            text=True,
        )
    assert ran.returncode == 1
    assert error in ran.stderr
    assert "Traceback" not in ran.stderr
