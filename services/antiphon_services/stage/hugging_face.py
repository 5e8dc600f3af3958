"""Reads a checkpoint directory with transformers and raises errors that name the file and suggest a
remedy.

transformers itself reports a missing file as a problem with the hub, fails with unrelated errors if
a value is invalid, and fills in sections that are missing from `config.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading
from antiphon_services.stage.config_object import ReadsConfig


def load_config(config_class: type[ReadsConfig], model_dir: Path, *parts: str) -> Any:
    """Return a checkpoint's configuration, which must contain an object for each name in `parts`.

    Raises `FailedPrecondition` if one of them is missing or a value is invalid.
    """
    path = model_dir / CONFIG_FILE
    content = read_config(model_dir)
    for part in parts:
        if not isinstance(content.get(part), dict):
            raise FailedPrecondition(f"{path}: {part} is missing or not an object; {REMEDY}")
    with reading(path):
        return config_class.from_dict(content)
