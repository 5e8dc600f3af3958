"""`docs/checkpoint-fields.md`, from what the loaders state.

`python -m tests.unit.services.field_table` writes it; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import antiphon_services.cosyvoice3.code2wav.fields as cosyvoice3_code2wav
import antiphon_services.cosyvoice3.talker.fields as cosyvoice3_talker
import antiphon_services.covo_audio.thinker.fields as covo_thinker
import antiphon_services.dynin_omni.thinker.fields as dynin_thinker
import antiphon_services.mimo_audio.code2wav.fields as mimo_code2wav
import antiphon_services.mimo_audio.talker.fields as mimo_talker
import antiphon_services.ming_flash_omni.thinker.fields as flash_thinker
import antiphon_services.ming_tts.code2wav.fields as ming_code2wav
import antiphon_services.ming_tts.talker.fields as ming_talker
import antiphon_services.qwen2_5_omni.talker.fields as omni25_talker
import antiphon_services.qwen2_5_omni.thinker.fields as omni25_thinker
import antiphon_services.qwen2_5_omni.token2wav.fields as omni25_token2wav
import antiphon_services.qwen3_omni.code2wav.fields as omni3_code2wav
import antiphon_services.qwen3_omni.talker.fields as omni3_talker
import antiphon_services.qwen3_omni.thinker.fields as omni3_thinker
import antiphon_services.qwen3_tts.code2wav.fields as tts_code2wav
import antiphon_services.qwen3_tts.talker.fields as tts_talker
from antiphon.pipelines.cosyvoice3 import MODEL_FILE
from antiphon.pipelines.dynin_omni import SPEECH_TOKENIZER
from antiphon.pipelines.mimo_audio import AUDIO_TOKENIZER
from antiphon_services.emova.unit_stage import UNIT_DECODER_CONFIG
from antiphon_services.stage.config_fields import ConfigPart, Values

PAGE = Path(__file__).parents[3] / "docs" / "checkpoint-fields.md"


@dataclass(frozen=True, slots=True)
class Stated:
    """What a stage states of one file."""

    family: str
    stage: str
    parts: Sequence[ConfigPart]
    vllm_parts: Sequence[ConfigPart] = ()
    file: str = "config.json"


CODEC_FILE = "speech_tokenizer/config.json"
LAYERS_FILE = "CosyVoice-BlankEN/config.json"
TOKENIZER_FILE = f"{AUDIO_TOKENIZER}/config.json"
UNIT_FILE = f"{SPEECH_TOKENIZER}/config.json"
FLASH_FILE = "talker/config.json"
FLASH_LAYERS_FILE, FLASH_AUDIO_FILE = "talker/llm/config.json", "talker/vae/config.json"
ALL = (
    Stated("Qwen3-Omni", "thinker", omni3_thinker.PARTS, omni3_thinker.VLLM_PARTS),
    Stated("Qwen3-Omni", "talker", omni3_talker.PARTS),
    Stated("Qwen3-Omni", "code2wav", omni3_code2wav.PARTS),
    Stated("Qwen2.5-Omni", "thinker", omni25_thinker.PARTS, omni25_thinker.VLLM_PARTS),
    Stated("Qwen2.5-Omni", "talker", omni25_talker.PARTS),
    Stated("Qwen2.5-Omni", "token2wav", omni25_token2wav.PARTS),
    Stated("Qwen3-TTS", "talker", tts_talker.PARTS),
    Stated("Qwen3-TTS", "talker", tts_talker.CODEC_PARTS, file=CODEC_FILE),
    Stated("Qwen3-TTS", "code2wav", tts_code2wav.PARTS, file=CODEC_FILE),
    Stated("CosyVoice3", "talker", cosyvoice3_talker.PARTS, file=MODEL_FILE),
    Stated("CosyVoice3", "talker", cosyvoice3_talker.LAYER_PARTS, file=LAYERS_FILE),
    Stated("CosyVoice3", "code2wav", cosyvoice3_code2wav.PARTS, file=MODEL_FILE),
    Stated("Covo-Audio", "thinker", covo_thinker.PARTS),
    Stated("Dynin-Omni", "thinker", dynin_thinker.PARTS),
    Stated("Dynin-Omni", "unit2wav", (UNIT_DECODER_CONFIG,), file=UNIT_FILE),
    Stated("MiMo-Audio", "talker", mimo_talker.PARTS),
    Stated("MiMo-Audio", "talker", mimo_talker.ENCODER_PARTS, file=TOKENIZER_FILE),
    Stated("MiMo-Audio", "code2wav", mimo_code2wav.PARTS, file=TOKENIZER_FILE),
    Stated("Ming TTS", "talker", ming_talker.PARTS),
    Stated("Ming TTS", "code2wav", ming_code2wav.PARTS),
    Stated("Ming-flash-omni", "thinker", flash_thinker.PARTS),
    Stated("Ming-flash-omni", "talker", ming_talker.FLASH_PARTS, file=FLASH_FILE),
    Stated("Ming-flash-omni", "talker", ming_talker.FLASH_LAYER_PARTS, file=FLASH_LAYERS_FILE),
    Stated("Ming-flash-omni", "talker", ming_talker.FLASH_AUDIO_PARTS, file=FLASH_AUDIO_FILE),
    Stated("Ming-flash-omni", "code2wav", ming_code2wav.FLASH_PARTS, file=FLASH_AUDIO_FILE),
)

REFUSED = "tests/unit/services/test_config_fields.py"
VARIANTS = "tests/equality/test_checkpoint_variants.py"
OMNI25_VARIANTS = "tests/equality/qwen2_5_omni/test_omni25_variants.py"
# Two checkpoints of Qwen3-Omni differ in all sizes; so do those of the kinds of Qwen3-TTS.
EQUAL = {
    "Qwen3-Omni": "tests/equality/test_fidelity.py",
    "Qwen2.5-Omni": "tests/equality/qwen2_5_omni/test_omni25_fidelity.py",
    "Qwen3-TTS": "tests/equality/qwen3_tts/test_tts_services.py",
    "CosyVoice3": "tests/equality/cosyvoice3/test_cosyvoice3_services.py",
    "Covo-Audio": "tests/equality/covo_audio/test_covo_thinker.py",
    "Dynin-Omni": "tests/equality/dynin_omni/test_dynin_thinker.py",
    "MiMo-Audio": "tests/equality/mimo_audio/test_mimo_services.py",
    "Ming TTS": "tests/equality/ming_tts/test_ming_services.py",
    "Ming-flash-omni": "tests/equality/ming_tts/test_ming_flash.py",
    "Ming-flash-omni, thinker": "tests/equality/ming_flash_omni/test_flash_thinker.py",
}
# Fields that a variant of a checkpoint changes.
VARIED: Mapping[str, str] = {
    "attention_bias": "biases_and_norms",
    "conv_chunksize": "audio_tower",
    "decoder_sparse_step": "sparse_steps",
    "hidden_act": "activation",
    "mlp_only_layers": "dense_layers",
    "n_window_infer": "audio_tower",
    "norm_topk_prob": "dense_layers",
    "rms_norm_eps": "biases_and_norms",
    "rope_parameters": "yarn",
    "rope_scaling": "yarn",
    "rope_theta": "rope_theta",
}
OMNI25_VARIED: Mapping[str, str] = {
    "hidden_act": "activation_and_norms",
    "layer_types": "wide_window",
    "max_window_layers": "wide_window",
    "rms_norm_eps": "activation_and_norms",
    "rope_parameters": "yarn",
    "rope_scaling": "yarn",
    "rope_theta": "yarn",
    "sliding_window": "wide_window",
    "use_sliding_window": "wide_window",
}
# Towers, the flow, the vocoder and the codec's encoder have parts that no variant changes.
DECODERS = ("text_config", "code_predictor_config", "code2wav_config", "audio_config")


def rows(stated: Stated, part: ConfigPart) -> Iterator[str]:
    """The fields that are treated and tested alike, in a row."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name in sorted(part.stated):
        key = treatment(part, name), test_of(stated, part, name)
        alike.setdefault(key, []).append(f"`{name}`")
    for (kind, test), fields in sorted(alike.items()):
        yield f"| {', '.join(fields)} | {kind} | {test} |"


def treatment(part: ConfigPart, name: str) -> str:
    """In words."""
    if name in part.rope_fields and name != "rope_theta":
        return f"only: `rope_type` {listed(part.ropes)}"
    if name in part.window_fields:
        return "computed, if no window is shorter than `context_limit`"
    if name in part.only:
        return f"only: {listed(part.only[name])}"
    if name in part.idle:
        return "no effect"
    return "computed"


def listed(values: Values) -> str:
    """Values as JSON has them."""
    shown = ["absent" if each is None else f"`{_json(each)}`" for each in values]
    return ", ".join(shown)


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_of(stated: Stated, part: ConfigPart, name: str) -> str:
    """The test that exercises a field; its file, and the case."""
    if name in part.idle:
        return ""
    if name in part.only:
        return f"`{REFUSED}`"
    decoder = part.path.rpartition(".")[2] in DECODERS
    if stated.family == "Qwen3-Omni" and decoder and name in VARIED:
        return f"`{VARIANTS}` {VARIED[name]}"
    omni25 = stated.family == "Qwen2.5-Omni" and stated.stage != "token2wav"
    if omni25 and name in OMNI25_VARIED and "_config.audio" not in part.path:
        return f"`{OMNI25_VARIANTS}` {OMNI25_VARIED[name]}"
    of_family = EQUAL[stated.family]
    return f"`{EQUAL.get(f'{stated.family}, {stated.stage}', of_family)}`"


def page(written: str) -> str:
    """The page: what is `written` before its first table, and the tables."""
    lines = [written.split("\n## ")[0].rstrip("\n")]
    for stated in ALL:
        for part in stated.parts:
            where = f"`{part.path}`" if part.path else "the whole file"
            lines += ["", f"## {stated.family}, {stated.stage}: {where} of `{stated.file}`", ""]
            if part.own is not None:
                lines += [f"Hugging Face's own module (`{part.own.__name__}`) computes it.", ""]
            lines += ["| fields | treatment | test |", "|---|---|---|", *rows(stated, part)]
        lines += list(_differences(stated))
    return "\n".join(lines) + "\n"


def _differences(stated: Stated) -> Iterator[str]:
    """What the vLLM engine does otherwise."""
    if not stated.vllm_parts:
        return
    yield from ("", f"## {stated.family}, {stated.stage} on vLLM: what differs", "")
    yield from ("| object | field | treatment |", "|---|---|---|")
    for part, other in zip(stated.parts, stated.vllm_parts, strict=True):
        for name in sorted(other.stated):
            usual = treatment(part, name) if name in part.stated else ""
            if (kind := treatment(other, name)) != usual:
                yield f"| `{part.path or 'the whole file'}` | `{name}` | {kind} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
