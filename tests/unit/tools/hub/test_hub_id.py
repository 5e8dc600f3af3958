"""Which texts name a model of the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_tools.hub.hub_id import HubId


@pytest.mark.parametrize(
    ("text", "repository", "revision"),
    [
        ("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice", "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice", "main"),
        ("Qwen/Qwen3-Omni@v1.0", "Qwen/Qwen3-Omni", "v1.0"),
        ("a/b@refs/pr/7", "a/b", "refs/pr/7"),
    ],
)
def test_org_and_name_are_an_id(text: str, repository: str, revision: str) -> None:
    assert HubId.read(text) == HubId(repository, revision)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "./org/name",
        "/org/name",
        "~/org/name",
        "org/name/",
        "org/folder/name",
        "../name",
        "org/..",
        "org/name@",
        "org/name@../main",
        "org/name@a/../../b",
        "org/na--me",
        "org/näme",
        f"org/{'n' * 100}",
        "https://huggingface.co/org/name",
    ],
)
def test_other_texts_are_none(text: str) -> None:
    assert HubId.read(text) is None


def test_a_directory_comes_before_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert HubId.read("org/name") is not None
    Path("org/name").mkdir(parents=True)
    assert HubId.read("org/name") is None
