"""Writes a complete CosyVoice3 checkpoint of a few megabytes with random weights.

Run it with `python -m antiphon_testkit.cosyvoice3.tiny_checkpoint DIR`. Files, fields and tensors
have the same names as in a released checkpoint, so that the vendor's code can load it. You can use
it in place of a released checkpoint wherever the audio doesn't matter. The vendor's code is not
required to write it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from antiphon.pipelines.cosyvoice3 import MEL_BINS, MODEL_FILE, SPEAKER_WIDTH, SPEECH_IDS
from antiphon_testkit.cosyvoice3.tensor_shapes import (
    LENGTH,
    flow_shapes,
    layer_shapes,
    talker_shapes,
    vocoder_shapes,
)
from antiphon_testkit.cosyvoice3.tiny_config import SPECIAL_TOKENS, layers_config, model_yaml
from antiphon_testkit.cosyvoice3.tiny_networks import write_code_network, write_speaker_network
from antiphon_testkit.cosyvoice3.tiny_shape import CLONES, VOICES, CosyVoiceShape
from antiphon_testkit.tensor_shapes import Shapes
from antiphon_testkit.tiny_checkpoint import TinyCheckpointCommand, make_directory
from antiphon_testkit.tiny_tokenizer import PLAIN_ADDED_TOKENS, write_slow_tokenizer
from antiphon_testkit.tiny_weights import WeightRules

PRESETS = {"voices": VOICES, "clones": CLONES}

LAYERS_FOLDER = "CosyVoice-BlankEN"

TOKENS_BY_CODE = 280
"""The number of tokens that the vendor's code adds to the tokenizer. It already has two of them."""
ROUNDED_TO = 64

END_ID = SPEECH_IDS + 1
END_GAIN = 2.0
SILENT_IDS = (1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323)
SILENT_LEAN = 1.0
PITCH_HZ = 120.0

TRAINED_VOICES = ("Alto", "bass")
ADDED_VOICE, ADDED_CODES = "Clara", 30

RULES = WeightRules(
    uniform=((r"(norm\w*)\.weight$", 0.6, 1.4), (r"\.alpha$", 0.5, 1.5)),
    normal=(
        (r"m_source\.l_linear\.bias$", 0.01),
        (r"\.bias$", 0.1),
        (r"embed_tokens\.weight$|speech_embedding\.weight$|input_embedding\.weight$", 1.0),
        (r"lm_head\.weight$", 1.0),
    ),
    gains=(
        (r"llm_decoder\.weight$", 3.0),
        (r"(attn_norm|norm_out)\.linear\.weight$", 0.7),
        (r"f0_predictor\.classifier\.weight$", 20.0),
        (r"m_source\.l_linear\.weight$", 3.0),
        (r"", 1.2),
    ),
)
# The lengths of a convolution's rows. The weights only determine their directions.
LENGTHS = (
    ("f0_predictor", 1.2),
    ("conv_post", 0.15),
    ("convs", 0.4),
    ("", 1.0),
)


def build_tiny_cosyvoice(directory: Path, shape: CosyVoiceShape = VOICES, seed: int = 0) -> None:
    """Write a checkpoint to `directory`, which is created if it doesn't exist.

    The same shape and seed always give the same weights. Raises `FailedPrecondition` if the
    directory is not empty.
    """
    make_directory(directory)
    folder = directory / LAYERS_FOLDER
    folder.mkdir()
    ids = write_slow_tokenizer(folder, SPECIAL_TOKENS, PLAIN_ADDED_TOKENS)
    vocabulary = -(-(max(ids.values()) + 1 + TOKENS_BY_CODE) // ROUNDED_TO) * ROUNDED_TO
    config = json.dumps(layers_config(shape, vocabulary), indent=2)
    (folder / "config.json").write_text(config + "\n")
    (directory / MODEL_FILE).write_text(model_yaml(shape))
    talker = _draw(talker_shapes(shape, vocabulary), seed)
    talker["llm.model.lm_head.weight"] = talker["llm.model.model.embed_tokens.weight"].clone()
    _shape_speech(talker)
    torch.save(talker, directory / "llm.pt")
    layers = {name: talker[f"llm.model.{name}"] for name in layer_shapes(shape, vocabulary)}
    save_file(layers, folder / "model.safetensors", {"format": "pt"})
    flow = _draw(flow_shapes(shape), seed)
    rates = torch.arange(0, shape.flow_head_dim, 2).float() / shape.flow_head_dim
    flow["decoder.estimator.rotary_embed.inv_freq"] = 1.0 / 10_000**rates
    torch.save(flow, directory / "flow.pt")
    vocoder = _draw(vocoder_shapes(shape), seed)
    vocoder["generator.f0_predictor.classifier.bias"].fill_(PITCH_HZ)
    torch.save(vocoder, directory / "hift.pt")
    write_speaker_network(directory / "campplus.onnx", seed)
    write_code_network(directory / "speech_tokenizer_v3.onnx", seed)
    if shape.voices:
        torch.save(_voices(seed, max(ids.values()) + 1), directory / "spk2info.pt")


def _draw(shapes: Shapes, seed: int) -> dict[str, torch.Tensor]:
    tensors = RULES.draw_each(shapes, seed)
    for name, tensor in tensors.items():
        if name.endswith(LENGTH):
            length = next(each for part, each in LENGTHS if part in name)
            tensors[name] = length * (0.5 + tensor.abs().clamp(max=1.0))
    return tensors


def _shape_speech(talker: dict[str, torch.Tensor]) -> None:
    """Change the weights so that speech ends by itself now and then, and silence lasts for a
    while.
    """
    head, rows = talker["llm_decoder.weight"], talker["speech_embedding.weight"]
    head[END_ID] *= END_GAIN
    direction = rows[SILENT_IDS[0]].clone()
    for id_ in SILENT_IDS:
        rows[id_] = direction + 0.3 * rows[id_]
        head[id_] += SILENT_LEAN * direction / direction.norm()


def _voices(seed: int, end_of_prompt: int) -> dict[str, dict[str, torch.Tensor]]:
    """Return the content of `spk2info.pt`, which consists of trained voices and one voice that was
    added from a recording.

    The first token added by the vendor's code marks the end of the prompt.
    """
    draw = torch.Generator().manual_seed(seed)
    voices = {
        name: {"embedding": torch.randn(1, SPEAKER_WIDTH, generator=draw)}
        for name in TRAINED_VOICES
    }
    codes = torch.randint(0, SPEECH_IDS, (1, ADDED_CODES), generator=draw, dtype=torch.int32)
    mel = torch.randn(1, 2 * ADDED_CODES, MEL_BINS, generator=draw)
    text = torch.randint(0, 256, (1, 12), generator=draw, dtype=torch.int32)
    text[0, 4] = end_of_prompt
    speaker = torch.randn(1, SPEAKER_WIDTH, generator=draw)
    voices[ADDED_VOICE] = {
        "prompt_text": text,
        "prompt_text_len": torch.tensor([12], dtype=torch.int32),
        "llm_prompt_speech_token": codes,
        "llm_prompt_speech_token_len": torch.tensor([ADDED_CODES], dtype=torch.int32),
        "flow_prompt_speech_token": codes,
        "flow_prompt_speech_token_len": torch.tensor([ADDED_CODES], dtype=torch.int32),
        "prompt_speech_feat": mel,
        "prompt_speech_feat_len": torch.tensor([2 * ADDED_CODES], dtype=torch.int32),
        "llm_embedding": speaker,
        "flow_embedding": speaker,
    }
    return voices


COMMAND = TinyCheckpointCommand(
    "CosyVoice3", "antiphon_testkit.cosyvoice3.tiny_checkpoint", PRESETS, build_tiny_cosyvoice
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
