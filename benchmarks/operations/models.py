"""Creates models of all families with any number of layers, on a device that stores no values.

The widths are the same as in tiny checkpoints. By default, the numbers of layers, groups and
experts are the same as in the released models. Tests that count the operations of a step also use
these functions.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from transformers import (
    Qwen3OmniMoeTalkerForConditionalGeneration,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniBigVGANConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniTalkerForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2_5OmniToken2WavBigVGANModel,
    Qwen2_5OmniToken2WavDiTModel,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from antiphon.pipelines.cosyvoice3 import MODEL_FILE
from antiphon.pipelines.qwen2_5_omni import PlaceholderIds
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.values.sampling import Sampling
from antiphon_services.cosyvoice3.code2wav.flow import MelFlow
from antiphon_services.cosyvoice3.code2wav.flow_module import FlowModule
from antiphon_services.cosyvoice3.code2wav.vocoder import HarmonicVocoder
from antiphon_services.cosyvoice3.code2wav.vocoder_module import VocoderModule, fold_weight_norm
from antiphon_services.cosyvoice3.talker.module import SpeechTalkerModule
from antiphon_services.cosyvoice3.talker.talker import SpeechTalker
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.readback import Readback
from antiphon_services.lm.repetition_aware import RepetitionRule
from antiphon_services.mimo_audio.code2wav.decoder import FrameCodecDecoder
from antiphon_services.mimo_audio.code2wav.module import CodecDecoderModule
from antiphon_services.mimo_audio.talker.draws import PositionDraws
from antiphon_services.mimo_audio.talker.frame_predictor import DelayedFramePredictor
from antiphon_services.mimo_audio.talker.group_encoder import GroupEncoder
from antiphon_services.mimo_audio.talker.model import SpeechTextModel
from antiphon_services.mimo_audio.talker.module import SpeechTextModule
from antiphon_services.qwen2_5_omni.talker.ids import TalkerIds
from antiphon_services.qwen2_5_omni.talker.model import CodecTalker
from antiphon_services.qwen2_5_omni.thinker.towers import Omni25Towers
from antiphon_services.qwen2_5_omni.token2wav.flow import Flow
from antiphon_services.qwen2_5_omni.token2wav.vocoder import MelVocoder
from antiphon_services.qwen3_omni.code2wav import vocoder as omni3_vocoder
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_services.qwen3_omni.thinker.towers import Omni3Towers
from antiphon_services.qwen3_tts.code2wav import module as tts_codec
from antiphon_services.qwen3_tts.talker.module import TalkerModule
from antiphon_services.qwen3_tts.talker.prompt import SpeechIds
from antiphon_services.qwen3_tts.talker.talker import TtsTalker
from antiphon_services.stage.hyperpyyaml import read_hyperpyyaml
from antiphon_services.thinker.model import ThinkerModel
from antiphon_services.vocoder.stream import StreamDecoder
from antiphon_testkit.cosyvoice3.tiny_config import layers_config, model_yaml
from antiphon_testkit.cosyvoice3.tiny_shape import VOICES, CosyVoiceShape
from antiphon_testkit.late_copies import late_to_host
from antiphon_testkit.mimo_audio import tiny_config as mimo_tiny
from antiphon_testkit.mimo_audio.tiny_shape import MARKS, MimoShape
from antiphon_testkit.qwen2_5_omni import tiny_config as omni25_tiny
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from antiphon_testkit.qwen2_5_omni.tiny_tokenizer import TOKENIZER as OMNI25_TOKENIZER
from antiphon_testkit.qwen3_omni import tiny_config as omni3_tiny
from antiphon_testkit.qwen3_omni.tiny_shape import SMALL, TinyShape
from antiphon_testkit.qwen3_omni.tiny_tokenizer import TOKENIZER as OMNI3_TOKENIZER
from antiphon_testkit.qwen3_tts import tiny_config as tts_tiny
from antiphon_testkit.qwen3_tts.tiny_shape import CUSTOM_VOICE, TtsShape

OMNI3 = replace(
    SMALL,
    layers=48,
    accept_layer=24,
    experts=128,
    experts_per_token=8,
    talker_layers=20,
    talker_experts=128,
    talker_experts_per_token=6,
    code_groups=16,
    codebook_size=2048,
    predictor_layers=5,
    decoder_layers=8,
)
OMNI25 = TinyOmni25Shape(layers=28, talker_layers=24, flow_layers=22)
TTS = replace(
    CUSTOM_VOICE, layers=28, code_groups=16, predictor_layers=5, decoder_layers=8, decoder_window=72
)
COSY = replace(VOICES, layers=24, flow_layers=22)
MIMO = replace(
    MARKS, layers=36, local_layers=16, group_layers=6, decoder_layers=32, vocoder_layers=16
)
MIMO_GROUP_ID = 7
MIMO_STEPS = mimo_tiny.GROUP + mimo_tiny.CHANNELS - 1
"""The number of steps of the frame predictor for a group."""

DRAWN = Sampling(
    temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, seed=0, max_tokens=9
)
COSY_DRAWN = replace(DRAWN, temperature=1.0, top_k=25, repetition_penalty=1.0)
LIMIT, SLOTS = 300, 64
WORDS = 512
TTS_TOKENS = (
    "assistant",
    "<|im_end|>",
    "<|im_start|>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_pad>",
)


class Replayed(TypedDict, total=False):
    """Settings that run steps as graphs or with fused kernels."""

    bucketing: Bucketing | None
    kernels: Kernels | None


def omni3_config(shape: TinyShape = OMNI3) -> Any:
    """Return the configuration of Qwen3-Omni."""
    with tempfile.TemporaryDirectory() as directory:
        return omni3_tiny.make_config(shape, OMNI3_TOKENIZER.write(Path(directory)))


def omni3_thinker(
    device: torch.device, shape: TinyShape = OMNI3, slots: int = SLOTS, **replayed: Unpack[Replayed]
) -> ThinkerModel:
    """Return the thinker of Qwen3-Omni in bfloat16."""
    config = omni3_config(shape)
    with device:
        module = Qwen3OmniMoeThinkerForConditionalGeneration(config.thinker_config)
    return ThinkerModel(
        module.to(torch.bfloat16),
        special=SpecialIds.from_config(config.to_dict()),
        towers=Omni3Towers(),
        tapped_layer=shape.accept_layer,
        slots=slots,
        context_limit=LIMIT,
        **replayed,
    )


def omni3_talker(
    device: torch.device, shape: TinyShape = OMNI3, slots: int = SLOTS, **replayed: Unpack[Replayed]
) -> Talker:
    """Return the talker of Qwen3-Omni in bfloat16."""
    config = omni3_config(shape)
    special = SpecialIds.from_config(config.to_dict())
    with device:
        module: Any = Qwen3OmniMoeTalkerForConditionalGeneration(config.talker_config)
        words = torch.zeros(special.tts_eos + WORDS, shape.hidden, dtype=torch.bfloat16)
    return Talker(
        module.to(torch.bfloat16),
        words,
        special,
        code_entries=shape.talker_vocabulary,
        context_limit=LIMIT,
        slots=slots,
        readback=Readback(late_to_host()),
        **replayed,
    )


def omni3_code2wav(device: torch.device, shape: TinyShape = OMNI3) -> StreamDecoder:
    """Return the code2wav decoder of Qwen3-Omni in float32."""
    config = omni3_config(shape)
    with device:
        return StreamDecoder(omni3_vocoder.vocoder_of(Qwen3OmniMoeCode2Wav(config.code2wav_config)))


def omni25_config(shape: TinyOmni25Shape = OMNI25) -> Any:
    """Return the configuration of Qwen2.5-Omni."""
    with tempfile.TemporaryDirectory() as directory:
        return omni25_tiny.make_config(shape, OMNI25_TOKENIZER.write(Path(directory)))


def omni25_thinker(
    device: torch.device,
    shape: TinyOmni25Shape = OMNI25,
    slots: int = SLOTS,
    **replayed: Unpack[Replayed],
) -> ThinkerModel:
    """Return the thinker of Qwen2.5-Omni in bfloat16."""
    config = omni25_config(shape)
    with device:
        module = Qwen2_5OmniThinkerForConditionalGeneration(config.thinker_config)
    return ThinkerModel(
        module.to(torch.bfloat16),
        special=PlaceholderIds.from_config(config.to_dict()),
        towers=Omni25Towers(),
        tapped_layer=shape.layers,
        with_words=True,
        slots=slots,
        context_limit=LIMIT,
        **replayed,
    )


def omni25_talker(
    device: torch.device,
    shape: TinyOmni25Shape = OMNI25,
    slots: int = SLOTS,
    **replayed: Unpack[Replayed],
) -> CodecTalker:
    """Return the talker of Qwen2.5-Omni in bfloat16."""
    config = omni25_config(shape)
    fields = config.to_dict()
    with device:
        module: Any = Qwen2_5OmniTalkerForConditionalGeneration(config.talker_config)
        words = torch.zeros(1000, shape.hidden, dtype=torch.bfloat16)
    return CodecTalker(
        module.to(torch.bfloat16),
        words,
        TalkerIds.from_config(fields),
        PlaceholderIds.from_config(fields),
        {"Ethan": 8},
        context_limit=LIMIT,
        slots=slots,
        readback=Readback(late_to_host()),
        **replayed,
    )


def omni25_flow(
    device: torch.device, shape: TinyOmni25Shape = OMNI25, bucketing: Bucketing | None = None
) -> Flow:
    """Return the flow of Qwen2.5-Omni in float32."""
    config = omni25_config(shape)
    with device:
        module = Qwen2_5OmniToken2WavDiTModel(config.token2wav_config.dit_config)
    return Flow(module, bucketing)


def omni25_vocoder(device: torch.device) -> MelVocoder:
    """Return the vocoder of Qwen2.5-Omni in float32.

    It has the released widths, which are the defaults of transformers.
    """
    with device:
        return MelVocoder(Qwen2_5OmniToken2WavBigVGANModel(Qwen2_5OmniBigVGANConfig()))


def tts_talker(
    device: torch.device,
    shape: TtsShape = TTS,
    slots: int = SLOTS,
    **replayed: Unpack[Replayed],
) -> TtsTalker:
    """Return the talker of Qwen3-TTS in bfloat16."""
    ids = {name: at for at, name in enumerate(TTS_TOKENS)}
    config = tts_tiny.make_config(shape, ids, LIMIT)
    with device:
        module: Any = TalkerModule(config["talker_config"])
    return TtsTalker(
        module.to(torch.bfloat16),
        SpeechIds.from_config(config),
        DRAWN,
        code_entries=shape.codebook_size,
        context_limit=LIMIT,
        slots=slots,
        readback=Readback(late_to_host()),
        **replayed,
    )


def tts_code2wav(device: torch.device, shape: TtsShape = TTS) -> StreamDecoder:
    """Return the code2wav decoder of Qwen3-TTS in float32."""
    fields = tts_tiny.make_codec_config(shape)["decoder_config"]
    with device:
        decoder = tts_codec.CodecDecoder(tts_codec.CodecConfig.from_dict(fields))
        return StreamDecoder(tts_codec.vocoder_of(decoder))


def cosy_config(shape: CosyVoiceShape = COSY) -> dict[str, Any]:
    """Return the configuration of CosyVoice3, without the layers of its talker."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / MODEL_FILE
        path.write_text(model_yaml(shape))
        return read_hyperpyyaml(path)


def cosy_talker(
    device: torch.device, shape: CosyVoiceShape = COSY, slots: int = SLOTS
) -> SpeechTalker:
    """Return the talker of CosyVoice3 in bfloat16. It supports neither graphs nor fused kernels."""
    with device:
        module = SpeechTalkerModule(Qwen2Config(**layers_config(shape, WORDS)))
    told = cosy_config(shape)["llm"]["sampling"]
    window = int(told["win_size"])
    return SpeechTalker(
        module.to(torch.bfloat16),
        RepetitionRule(window, repeats=window * float(told["tau_r"])),
        context_limit=LIMIT,
        slots=slots,
        readback=Readback(late_to_host()),
    )


def mimo_talker(
    device: torch.device,
    shape: MimoShape = MIMO,
    slots: int = SLOTS,
    bucketing: Bucketing | None = None,
) -> SpeechTextModel:
    """Return the talker of MiMo-Audio in bfloat16. It does not support fused kernels."""
    config = Qwen2Config(**mimo_tiny.model_config(shape, WORDS, end=0))
    with device:
        module = SpeechTextModule(config).to(torch.bfloat16)
    sizes = {"empty_id": MIMO_GROUP_ID, "empty_codes": mimo_tiny.EMPTY_CODES}
    predictor = DelayedFramePredictor(
        module,
        slots,
        group=mimo_tiny.GROUP,
        delays=range(mimo_tiny.CHANNELS),
        empty_codes=mimo_tiny.EMPTY_CODES,
        bucketing=bucketing,
    )
    return SpeechTextModel(
        module,
        GroupEncoder(module, group=mimo_tiny.GROUP, full=True, **sizes),
        PositionDraws(module, predictor, slots=slots, **sizes),
        context_limit=LIMIT,
        slots=slots,
        readback=Readback(late_to_host()),
    )


def mimo_code2wav(device: torch.device, shape: MimoShape = MIMO) -> FrameCodecDecoder:
    """Return the code2wav decoder of MiMo-Audio in float32."""
    config = mimo_tiny.codec_config(shape)
    with device:
        module = CodecDecoderModule(config)
        tables = [torch.zeros(size, shape.codec_hidden) for size in mimo_tiny.EMPTY_CODES]
    return FrameCodecDecoder(module, tables, config)


def cosy_flow(device: torch.device, shape: CosyVoiceShape = COSY) -> MelFlow:
    """Return the flow of CosyVoice3 in float32."""
    config = cosy_config(shape)["flow"]
    with device:
        module = FlowModule(config)
    matching = config["decoder"]
    return MelFlow(
        module,
        heads=int(matching["estimator"]["heads"]),
        guidance=float(matching["cfm_params"]["content"]["inference_cfg_rate"]),
        block_frames=int(matching["estimator"]["static_chunk_size"]),
    )


def cosy_vocoder(device: torch.device, shape: CosyVoiceShape = COSY) -> HarmonicVocoder:
    """Return the vocoder of CosyVoice3 in float32."""
    config = cosy_config(shape)["hift"]
    with device:
        module = VocoderModule(config)
    fold_weight_norm(module)
    return HarmonicVocoder(module, config)
