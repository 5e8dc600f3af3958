"""Records how vllm-omni's port of the front end of Ming-flash-omni divides `made_texts()`.

It takes the folder of an unpacked wheel of vllm-omni 0.30. See README.md.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

from tests.equality.ming_tts.flash_cases import made_texts

HERE = Path(__file__).parent
MODULE = "vllm_omni/model_executor/models/ming_flash_omni/text_processing.py"


def import_port(wheel: Path) -> Any:
    """The port's module, with a stand-in for vLLM."""
    sys.modules["vllm"] = types.ModuleType("vllm")
    logger = types.ModuleType("vllm.logger")
    logger.__dict__["init_logger"] = logging.getLogger
    sys.modules["vllm.logger"] = logger
    spec = importlib.util.spec_from_file_location("text_processing", wheel / MODULE)
    assert spec is not None
    assert spec.loader is not None
    port = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(port)
    return port


def utterances(port: Any, text: str) -> list[str]:
    """A text as the port's front end divides it, without its spelling of numbers.

    Texts of one utterance stay as they are.
    """
    cut = port.cut_text_by_semantic_length(text.strip())
    cut = [each.removeprefix("，").strip() for each in cut]  # noqa: RUF001
    cut = [each for each in cut if each]
    return cut if len(cut) > 1 else [text]


def main() -> None:
    """Write `recorded_cuts.json`."""
    port = import_port(Path(sys.argv[1]))
    cuts = [[text, utterances(port, text)] for text in made_texts()]
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in cuts)
    (HERE / "recorded_cuts.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
