import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from transformers import Qwen3OmniMoeForConditionalGeneration
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeTalkerForConditionalGeneration,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_testkit.qwen3_omni.tiny_checkpoint import OTHER, build_tiny_checkpoint

torch.set_num_threads(1)
PARTS: dict[str, Any] = {
    "thinker": Qwen3OmniMoeThinkerForConditionalGeneration,
    "talker": Qwen3OmniMoeTalkerForConditionalGeneration,
    "code2wav": Qwen3OmniMoeCode2Wav,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "checkpoint"
    build_tiny_checkpoint(path, OTHER)
    return path


@pytest.fixture(scope="module")
def full(directory: Path) -> Any:
    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(directory)


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "copy"))


def load(part: str, full: Any, directory: Path, **settings: Any) -> Any:
    settings = {"dtype": torch.float32, "device": "cpu"} | settings
    config = getattr(full.config, f"{part}_config")
    return load_submodule(PARTS[part], config, f"{part}.", Weights(directory), **settings)


def all_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def shard_of(directory: Path, name: str) -> Path:
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    return directory / index["weight_map"][name]


def edit_index(directory: Path, old: str, new: str | None) -> None:
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    file = index["weight_map"].pop(old)
    if new is not None:
        index["weight_map"][new] = file
    path.write_text(json.dumps(index))


class Counting(torch.nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(1))
        self.register_buffer("places", torch.zeros(2, dtype=torch.int64))


def test_stored_whole_numbers_are_kept_when_the_stage_computes_in_another_dtype(
    tmp_path: Path,
) -> None:
    stored = {"part.scale": torch.tensor([0.5]), "part.places": torch.tensor([1001, 70_001])}
    safetensors.torch.save_file(stored, tmp_path / "model.safetensors")
    weights, bfloat16 = Weights(tmp_path), torch.bfloat16
    module: Any = load_submodule(Counting, None, "part.", weights, dtype=bfloat16, device="cpu")
    assert module.scale.dtype is bfloat16
    assert module.places.tolist() == [1001, 70_001]


def test_stored_buffer_is_ignored_when_the_module_computes_it(tmp_path: Path) -> None:
    stored = {"part.scale": torch.tensor([0.5]), "part.places": torch.tensor([1, 2])}
    file = tmp_path / "model.safetensors"

    def load_counting(*more: str) -> Any:
        safetensors.torch.save_file(stored | dict.fromkeys(more, torch.ones(2)), file)
        return load_submodule(
            Counting,
            None,
            "part.",
            Weights(tmp_path),
            dtype=torch.float32,
            device="cpu",
            ignored=("turns.inv_freq",),
        )

    assert load_counting().scale.item() == 0.5
    assert load_counting("part.turns.inv_freq").state_dict().keys() == {"scale", "places"}
    for other in ("part.inv_freq", "part.turns.inv_freq.weight", "part.turns"):
        with pytest.raises(FailedPrecondition, match=f"unexpected: {other}$"):
            load_counting(other)


def test_part_is_known_by_the_names_of_its_weights(directory: Path) -> None:
    assert Weights(directory).has("thinker.visual.")
    assert not Weights(directory).has("thinker.nose.")


@pytest.mark.parametrize("part", PARTS)
def test_part_equals_the_full_model_when_loaded_alone(
    part: str, full: Any, directory: Path
) -> None:
    module = load(part, full, directory)
    expected, got = all_tensors(full.get_submodule(part)), all_tensors(module)
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name], tensor), name
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_part_is_read_alone_when_other_files_are_broken(
    full: Any, directory: Path, copy: Path
) -> None:
    index = json.loads((copy / "model.safetensors.index.json").read_text())["weight_map"]
    wanted = {file for name, file in index.items() if name.startswith("talker.")}
    for file in set(index.values()) - wanted:
        (copy / file).unlink()
    assert set(index.values()) - wanted
    assert load("talker", full, copy).dtype == torch.float32


def test_part_loads_when_the_checkpoint_is_one_file(
    full: Any, directory: Path, tmp_path: Path
) -> None:
    full.save_pretrained(tmp_path)
    assert not (tmp_path / "model.safetensors.index.json").exists()
    module = load("talker", full, tmp_path)
    assert torch.equal(module.codec_head.weight, full.talker.codec_head.weight)


def test_part_loads_when_experts_are_stored_fused(full: Any, tmp_path: Path) -> None:
    full.save_pretrained(tmp_path, save_original_format=False)
    module = load("talker", full, tmp_path)
    expected = all_tensors(full.talker)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in all_tensors(module).items())


def test_part_lacks_a_child_when_it_is_skipped(full: Any, directory: Path) -> None:
    module = load("thinker", full, directory, skip=("visual",))
    assert module.visual is None
    assert torch.equal(module.lm_head.weight, full.thinker.lm_head.weight)


def test_part_has_the_given_dtype_and_exact_buffers_when_loaded_in_bfloat16(
    full: Any, directory: Path
) -> None:
    module = load("talker", full, directory, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}
    expected = full.talker.codec_head.weight.bfloat16()
    assert torch.equal(module.codec_head.weight, expected)
    rotary = full.talker.model.rotary_emb.inv_freq
    assert torch.equal(module.model.rotary_emb.inv_freq, rotary)


def test_load_names_the_tensors_when_some_are_missing(full: Any, copy: Path) -> None:
    edit_index(copy, "talker.model.layers.1.mlp.experts.2.up_proj.weight", None)
    with pytest.raises(
        FailedPrecondition, match=r"are missing: talker\.model\.layers\.1\.mlp\.experts\.2\.up_proj"
    ):
        load("talker", full, copy)


def test_load_names_the_tensors_when_some_are_unexpected(full: Any, directory: Path) -> None:
    config = type(full.config.code2wav_config)(
        **(full.config.code2wav_config.to_dict() | {"num_hidden_layers": 2})
    )
    with pytest.raises(
        FailedPrecondition, match=r"unexpected: code2wav\.pre_transformer\.layers\.2.* 6 more$"
    ):
        load_submodule(
            Qwen3OmniMoeCode2Wav,
            config,
            "code2wav.",
            Weights(directory),
            dtype=torch.float32,
            device="cpu",
        )


def test_load_names_the_tensor_when_its_shape_differs(full: Any, directory: Path) -> None:
    config = type(full.config.code2wav_config)(
        **(full.config.code2wav_config.to_dict() | {"codebook_size": 95})
    )
    with pytest.raises(
        FailedPrecondition, match=r"code2wav\.code_embedding\.weight: the shape is \[768, 48"
    ):
        load_submodule(
            Qwen3OmniMoeCode2Wav,
            config,
            "code2wav.",
            Weights(directory),
            dtype=torch.float32,
            device="cpu",
        )


def test_load_fails_when_a_weight_file_is_missing(full: Any, copy: Path) -> None:
    shard_of(copy, "code2wav.code_embedding.weight").unlink()
    with pytest.raises(FailedPrecondition, match="is missing, so that code2wav"):
        load("code2wav", full, copy)


def test_load_fails_when_the_directory_has_no_weights(full: Any, tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="its tensors can't be listed"):
        load("code2wav", full, tmp_path)


def test_tensor_equals_the_model_when_read_by_name(full: Any, directory: Path) -> None:
    table = Weights(directory).read("thinker.model.embed_tokens.weight")
    assert torch.equal(table, full.thinker.model.embed_tokens.weight)
    with pytest.raises(FailedPrecondition, match=r"no tensor thinker\.embed"):
        Weights(directory).read("thinker.embed")


def test_fingerprint_is_equal_when_only_the_place_differs(directory: Path, copy: Path) -> None:
    (copy / "README.md").write_text("about")
    assert fingerprint(copy) == fingerprint(directory)
    assert len(fingerprint(copy)) == 32


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json"],
)
def test_fingerprint_changes_when_a_description_changes(name: str, copy: Path) -> None:
    before = fingerprint(copy)
    (copy / name).write_text((copy / name).read_text() + " ")
    assert fingerprint(copy) != before


@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
def test_fingerprint_changes_when_one_weight_byte_changes(where: float, copy: Path) -> None:
    before = fingerprint(copy)
    path = sorted(copy.glob("*.safetensors"))[1]
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    content[header + int(where * (len(content) - 1 - header))] ^= 1
    path.write_bytes(content)
    assert fingerprint(copy) != before


def test_fingerprint_sees_the_last_byte_when_a_file_is_large(copy: Path) -> None:
    path = copy / "extra.safetensors"
    path.write_bytes(safetensors.serialize({}))
    with path.open("r+b") as file:
        file.truncate(200 << 20)
    before = fingerprint(copy)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    assert fingerprint(copy) != before


def test_fingerprint_fails_when_the_directory_is_no_checkpoint(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="no config"):
        fingerprint(tmp_path)
    (copy / "bad.safetensors").write_bytes(b"oops")
    with pytest.raises(FailedPrecondition, match="not a safetensors file"):
        fingerprint(copy)


def test_fingerprint_of_a_checkpoint_without_config_json_covers_all_its_files(
    tmp_path: Path,
) -> None:
    files = {"model.yaml": b"a: 1", "llm.pt": b"weights", "speaker.onnx": b"network"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    before = fingerprint(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content[:-1] + b"?")
        assert fingerprint(tmp_path) != before, name
        (tmp_path / name).write_bytes(content)
    assert fingerprint(tmp_path) == before
    (tmp_path / "model.yaml").unlink()
    with pytest.raises(FailedPrecondition, match="no config"):
        fingerprint(tmp_path)


def test_fingerprint_needs_no_torch_when_imported(directory: Path) -> None:
    program = (
        "import sys; from pathlib import Path; "
        "from antiphon.runtime.checkpoint.fingerprint import fingerprint; "
        "print(fingerprint(Path(sys.argv[1]))); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == fingerprint(directory)
