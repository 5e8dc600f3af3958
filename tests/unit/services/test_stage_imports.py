"""A process imports what it runs: compilers, modelling code and what others need stay out of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "models/antiphon-demo"

# What each costs is in `antiphon_services.lm.modules`. The rest are packages that other parts of a
# deployment use, or that torch and transformers take if they are installed.
KEPT_OUT = (
    "cv2", "grpc_tools", "hypothesis", "kubernetes", "librosa", "matplotlib", "networkx", "numba",
    "onnxruntime", "opentelemetry", "pandas", "pytest", "requests", "sklearn", "sympy",
    "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torchaudio", "torchvision",
    "transformers.activations", "transformers.modeling_utils", "transformers.models.auto", "triton",
    "uvicorn", "vllm",
)  # fmt: skip

UNUSED_BY_DECODERS = ("PIL", "huggingface_hub.file_download", "httpx", "tokenizers", "transformers")
"""What only a stage needs that has a tokenizer or a feature extractor of transformers."""

LOAD = """
import json, sys
from pathlib import Path
import antiphon_services.stage.loading
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.registry import pipeline_for
from antiphon_services.stage.loading import load_stage
model = Path(sys.argv[2])
load_stage(pipeline_for(model), sys.argv[1], model, StageConfig(slots=2, context_limit=256))
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(source: str, *arguments: str) -> set[str]:
    """What is imported in a process of its own when it has run this."""
    ran = subprocess.run(
        [sys.executable, "-c", source, *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize("role", ["thinker", "talker", "code2wav"])
def test_stage_imports_no_compiler_and_no_modelling_code(role: str) -> None:
    imported = modules_after(LOAD, role, str(DEMO))
    assert imported.isdisjoint(KEPT_OUT), sorted(imported & set(KEPT_OUT))
    modelling = {each for each in imported if each.startswith("transformers.models.")}
    assert not {each for each in modelling if ".modeling_" in each or ".configuration_" in each}
    if role != "thinker":
        assert imported.isdisjoint(UNUSED_BY_DECODERS), sorted(imported & set(UNUSED_BY_DECODERS))


def test_stages_with_own_layers_import_no_modelling_code() -> None:
    source = """
import json, sys
import antiphon_services.cosyvoice3.talker.load, antiphon_services.dynin_omni.thinker.load
import antiphon_services.mimo_audio.talker.load
print(json.dumps(sorted(sys.modules)))
"""
    imported = modules_after(source)
    assert imported.isdisjoint(KEPT_OUT), sorted(imported & set(KEPT_OUT))


def test_stages_without_tokenizer_import_no_transformers() -> None:
    source = """
import json, sys
import antiphon_services.cosyvoice3.code2wav.load, antiphon_services.covo_audio.code2wav.load
import antiphon_services.dynin_omni.unit2wav.load, antiphon_services.dynin_omni.token2image.load
import antiphon_services.mimo_audio.code2wav.load, antiphon_services.ming_tts.code2wav.load
print(json.dumps(sorted(sys.modules)))
"""
    imported = modules_after(source)
    unused = {*KEPT_OUT, *UNUSED_BY_DECODERS}
    assert imported.isdisjoint(unused), sorted(imported & unused)


def test_gateway_imports_no_model_code() -> None:
    source = "import antiphon_gateway.__main__, json, sys; print(json.dumps(sorted(sys.modules)))"
    imported = modules_after(source)
    foreign = {*KEPT_OUT, "torch", "transformers", "tokenizers", "safetensors", "PIL"} - {"uvicorn"}
    assert imported.isdisjoint(foreign), sorted(imported & foreign)
