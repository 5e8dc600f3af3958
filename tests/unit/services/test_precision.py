"""What stages compute in, by device and setting."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon_services.stage.precision import BFLOAT16, FLOAT32, compute_dtype, dtype_name

ROOT = Path(__file__).parents[3]


@pytest.fixture
def rounding() -> Iterator[None]:
    """torch's flags as torch has them, and afterwards as they were."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept


@pytest.mark.parametrize(
    ("config", "decoder", "other"),
    [
        (StageConfig(), FLOAT32, FLOAT32),
        (StageConfig(dtype="bfloat16"), BFLOAT16, BFLOAT16),
        (StageConfig(device="cuda"), BFLOAT16, FLOAT32),
        (StageConfig(device="cuda:1"), BFLOAT16, FLOAT32),
        (StageConfig(device="cuda:0", dtype="float32"), FLOAT32, FLOAT32),
        (StageConfig(device="cuda:0", dtype="float16"), "float16", "float16"),
    ],
)
def test_decoder_computes_in_bfloat16_on_a_gpu_unless_told_otherwise(
    config: StageConfig, decoder: str, other: str
) -> None:
    assert dtype_name("talker", config, on_gpu=BFLOAT16) == decoder
    assert dtype_name("code2wav", config) == other
    assert compute_dtype("talker", config, on_gpu=BFLOAT16) == getattr(torch, decoder)


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (StageConfig(device="cuda", dtype="float32"), True),
        (StageConfig(device="cuda"), False),
        (StageConfig(device="cuda", dtype="bfloat16"), False),
        (StageConfig(dtype="float32"), False),
    ],
)
def test_float32_decoder_on_a_gpu_is_warned_of(
    config: StageConfig, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        dtype_name("talker", config, on_gpu=BFLOAT16)
        dtype_name("code2wav", config)
    assert ["talker: dtype: float32" in each.message for each in caplog.records] == [True] * warned


@pytest.mark.usefixtures("rounding")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", None])
def test_float32_is_not_rounded_whatever_the_stage_computes_in(dtype: str | None) -> None:
    compute_dtype("code2wav", StageConfig(dtype=dtype))  # type: ignore[arg-type]
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_one_file_decides_how_float32_is_rounded() -> None:
    sources = [path for each in ("antiphon", "services") for path in (ROOT / each).rglob("*.py")]
    known = [path.relative_to(ROOT) for path in sources if "tf32" in path.read_text()]
    assert known == [Path("services/antiphon_services/stage/precision.py")]


def test_every_stage_asks_what_to_compute_in() -> None:
    services = ROOT / "services/antiphon_services"
    # Loaders that several families share, by the function that a family calls.
    shared = {
        "load_torch(": services / "thinker/torch_loading.py",
        "unit_stage(": services / "emova/unit_stage.py",
        "drawing_stage(": services / "magvit/drawing_stage.py",
    }
    for path in shared.values():
        assert "compute_dtype(" in path.read_text(), path
    loading = (*services.glob("*/*/load.py"), *shared.values())
    own = [path for path in loading if "weights" in path.read_text().lower()]
    assert own
    for path in own:
        text = path.read_text()
        assert any(each in text for each in ("compute_dtype(", *shared)), path
        assert "config.dtype" not in text, path
