"""Compose files: valid by Compose's schema, and their containers speak, run as processes.

A container's host name becomes an address of its own in 127.0.0.0/8, and its files lie in a folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from antiphon.deployment.schema import deployment_of
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from tests.cluster.own_address import own_address
from tests.deploy.chart_rendering import ROOT

FILES = sorted((ROOT / "packaging" / "compose").glob("*.yaml"))
CONFIG = "/etc/antiphon/deployment.yaml"
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
STARTS_S = 240.0
CHECKED_EVERY_S = 0.5
ASKED_S = 120.0

Json = dict[str, Any]


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """The text with `${NAME}`, `${NAME:-default}` and `${NAME:?message}` as Compose reads them."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if given := variables.get(name):
            return given
        if kind != "-":
            raise ValueError(f"{name}: {rest}")
        return str(rest)

    return VARIABLE.sub(value, text)


@dataclass(frozen=True)
class Project:
    """The services of a file as processes of this machine."""

    services: Json
    config: str
    addresses: dict[str, str]
    folder: Path
    replaced: Mapping[str, str]

    @classmethod
    def of(cls, file: Path, folder: Path, replaced: Mapping[str, str]) -> Project:
        variables = {"MODEL_DIR": "/models"}
        content = yaml.safe_load(interpolated(file.read_text(), variables))
        services = content["services"]
        addresses = {name: own_address() for name in services}
        config = content["configs"]["deployment"]["content"]
        return cls(services, config, addresses, folder, replaced)

    def run(self, name: str) -> subprocess.Popen[bytes]:
        """Start a container's command."""
        file = self.folder / f"{name}.yaml"
        text = self.config.replace("[::]:", f"{self.addresses[name]}:")
        for host, address in self.addresses.items():
            text = text.replace(f'"{host}:', f'"{address}:')
        for written, here in self.replaced.items():
            assert written in text
            text = text.replace(written, here)
        file.write_text(text)
        service = self.services[name]
        command = [sys.executable if word == "python" else word for word in service["command"]]
        assert CONFIG in command
        command = [str(file) if word == CONFIG else word for word in command]
        with (self.folder / f"{name}.log").open("wb") as said:
            environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
            return subprocess.Popen(
                command,
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env=environment | service["environment"],
            )

    def said(self) -> str:
        """What all of them have written."""
        return "\n".join(
            f"{each.stem}: {each.read_text(errors='replace')[-3000:]}"
            for each in sorted(self.folder.glob("*.log"))
        )

    def healthy(self) -> bool:
        """Whether the gateway's health check succeeds now."""
        kind, python, *words = self.services["gateway"]["healthcheck"]["test"]
        assert (kind, python) == ("CMD", "python")
        asked = [word.replace("//localhost:", f"//{self.addresses['gateway']}:") for word in words]
        assert asked != words
        return not subprocess.run(
            [sys.executable, *asked], capture_output=True, check=False
        ).returncode


@contextmanager
def up(file: Path, folder: Path, replaced: Mapping[str, str]) -> Iterator[str]:
    """The file's services, healthy; the address of the gateway's HTTP."""
    project = Project.of(file, folder, replaced)
    with ExitStack() as stack:
        running = {}
        for name in project.services:
            running[name] = stack.enter_context(project.run(name))
            stack.callback(running[name].kill)
        ends_at = time.monotonic() + STARTS_S
        while not project.healthy():
            assert time.monotonic() < ends_at, f"never healthy\n{project.said()}"
            # The next check is a moment later, or when a container ends.
            with suppress(subprocess.TimeoutExpired):
                running["gateway"].wait(CHECKED_EVERY_S)
            ended = [name for name, each in running.items() if each.poll() is not None]
            assert not ended, f"{ended} ended\n{project.said()}"
        published = interpolated(str(project.services["gateway"]["ports"][0]), {})
        yield f"http://{project.addresses['gateway']}:{published.rpartition(':')[2]}"
        for process in running.values():
            process.terminate()
        assert {name: each.wait() for name, each in running.items()} == dict.fromkeys(running, 0)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_compose_file_is_valid_by_the_schema_of_compose(file: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_compose_file_has_a_service_for_every_stage(file: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(interpolated(file.read_text(), {"MODEL_DIR": "/models"}))
    deployment = deployment_of(yaml.safe_load(content["configs"]["deployment"]["content"]))
    assert set(content["services"]) == {*deployment.stages, "gateway"}
    for name, stage in deployment.stages.items():
        assert stage.addresses == (f"{name}:50051",)
        assert stage.advertise == f"{name}:50051"
    images = {service["image"] for service in content["services"].values()}
    assert {image.partition(":")[0] for image in images} == {"antiphon-stage", "antiphon-gateway"}


def test_missing_model_directory_is_named() -> None:
    text = (ROOT / "packaging" / "compose" / "qwen3-tts-gpu.yaml").read_text()
    with pytest.raises(ValueError, match="MODEL_DIR: set it to the directory of the checkpoint"):
        interpolated(text, {})


@pytest.mark.timeout(STARTS_S + 2 * ASKED_S)
def test_containers_of_the_embedded_model_speak(tmp_path: Path) -> None:
    file = ROOT / "packaging" / "compose" / "compose.yaml"
    with up(file, tmp_path, {"/app/": f"{ROOT}/"}) as url:
        body = {
            "model": "antiphon-demo",
            "modalities": ["text", "audio"],
            "audio": {"voice": "alloy", "format": "wav"},
            "messages": [{"role": "user", "content": "What is antiphon?"}],
        }
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=ASKED_S)
        assert answer.status_code == 200, answer.text
        audio = answer.json()["choices"][0]["message"]["audio"]
        assert len(audio["data"]) > 10_000


@pytest.mark.timeout(STARTS_S + 2 * ASKED_S)
def test_containers_of_a_text_to_speech_model_speak(tmp_path: Path) -> None:
    model = tmp_path / "qwen3-tts"
    build_tiny_tts(model)
    file = ROOT / "packaging" / "compose" / "qwen3-tts-gpu.yaml"
    here = {"/models/qwen3-tts": str(model), "device: cuda": "device: cpu"}
    with up(file, tmp_path, here | {"context_limit: 4096": "context_limit: 256"}) as url:
        voices = httpx.get(f"{url}/v1/audio/voices", timeout=ASKED_S).json()
        body = {"model": "qwen3-tts", "input": "Hello.", "response_format": "pcm", "voice": "alloy"}
        answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=ASKED_S)
        assert answer.status_code == 200, (answer.text, voices)
        assert len(answer.content) > 1000
