"""Reads a checkpoint directory with transformers, with errors that name file and remedy.

transformers itself reports a missing file as a hub problem, fails on invalid values with unrelated
errors, and fills in parts that `config.json` lacks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading


def load_config(config_class: type[PreTrainedConfig], model_dir: Path, *parts: str) -> Any:
    """Return the checkpoint's configuration. Each of `parts` must be present as an object.

    Raises `FailedPrecondition` if one is missing or a value is invalid.
    """
    path = model_dir / CONFIG_FILE
    content = read_config(model_dir)
    for part in parts:
        if not isinstance(content.get(part), dict):
            raise FailedPrecondition(f"{path}: {part} is missing or no object; {REMEDY}")
    with reading(path):
        return config_class.from_dict(content)
