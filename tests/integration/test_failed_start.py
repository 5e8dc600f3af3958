"""A stage process that cannot start: one sentence, exit status 2, and never `ready`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint

pytestmark = [pytest.mark.processes, pytest.mark.asyncio]

TIMEOUT_S = 150.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole") / "tiny"
    build_tiny_checkpoint(directory)
    return directory


async def start(role: str, directory: Path, *options: str) -> tuple[int | None, str, list[str]]:
    """Exit status, standard error and announced events of a stage that ends by itself."""
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "antiphon_services", role, "--model", str(directory),
        "--announce-fd", str(writing), "--log-level", "warning", *options,
        stderr=asyncio.subprocess.PIPE, pass_fds=(writing,),
    )  # fmt: skip
    os.close(writing)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, told = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        with os.fdopen(reading) as announced:
            events = [json.loads(line)["event"] for line in announced]
    return process.returncode, told.decode(), events


async def test_a_broken_checkpoint_stops_the_start_with_a_sentence_and_no_traceback(
    whole: Path, tmp_path: Path
) -> None:
    copies = {}
    for name in ("extractor", "tokenizer", "shards"):
        copies[name] = Path(shutil.copytree(whole, tmp_path / name))
    (copies["extractor"] / "preprocessor_config.json").unlink()
    (copies["tokenizer"] / "tokenizer.json").unlink()
    for shard in copies["shards"].glob("model-*"):
        shard.unlink()
    outcomes = await asyncio.gather(
        start("thinker", copies["extractor"]),
        start("thinker", copies["tokenizer"]),
        start("code2wav", copies["shards"]),
    )
    words = (
        "preprocessor_config.json is missing",
        "the warm-up prompt failed",
        "is missing, so that",
    )
    for (status, told, events), word in zip(outcomes, words, strict=True):
        assert status == 2, told
        last = told.splitlines()[-1]
        assert last.split(":")[0] in ("thinker", "code2wav")
        assert word in last
        assert "Traceback" not in told
        assert "huggingface.co" not in told
        assert events == ["listening"]
