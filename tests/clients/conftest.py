from __future__ import annotations

from collections.abc import Iterator

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave these tests out of a run that does not ask for them."""
    return None if config.getoption("--clients") else True


@pytest.fixture(scope="session")
def reading_aloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a gateway before a model that reads aloud; its voice is noise."""
    # Other runs collect this file, and start no services.
    from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
    from tests.embedded_model import embedded_model

    directory = tmp_path_factory.mktemp("model") / "tiny-tts"
    build_tiny_tts(directory)
    with embedded_model("--model", str(directory)) as model:
        yield model.url
