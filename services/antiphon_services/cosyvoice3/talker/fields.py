"""The configuration fields that the talker supports.

The classes used here are documented in `config_fields`.
"""

from __future__ import annotations

from antiphon.pipelines.cosyvoice3 import SAMPLE_RATE_HZ, SPEECH_IDS
from antiphon_services.cosyvoice3.talker.reference import MEL
from antiphon_services.stage.config_fields import LAYER_SIZES, OFF, PLAIN_ROPE, ConfigPart, names

TALKER = ConfigPart(
    "llm",
    computed=names("mix_ratio sampling"),
    only={
        "!new": ("cosyvoice.llm.llm.CosyVoice3LM",),
        "speech_token_size": (SPEECH_IDS,),
    },
    # Sizes that are also part of the layer configuration, and fields that are only used for
    # training.
    idle=names("llm llm_input_size llm_output_size length_normalized_loss lsm_weight"),
)
SAMPLING = ConfigPart(
    "llm.sampling",
    # `top_p` and `top_k` are also used. They are not listed because they have no effect in the
    # files of other model families.
    computed=names("win_size tau_r"),
    only={"!name": ("cosyvoice.utils.common.ras_sampling",)},
)
TOKENIZER = ConfigPart(
    "get_tokenizer",
    only={
        "!name": ("cosyvoice.tokenizer.tokenizer.get_qwen_tokenizer",),
        "version": ("cosyvoice3",),
    },
    idle=names("token_path skip_special_tokens"),
)
FEATURES = ConfigPart(
    "feat_extractor",
    only={
        "!name": ("matcha.utils.audio.mel_spectrogram",),
        "n_fft": (MEL.window,),
        "win_size": (MEL.window,),
        "hop_size": (MEL.hop,),
        "num_mels": (MEL.bins,),
        "sampling_rate": (SAMPLE_RATE_HZ,),
        "fmin": (0,),
        # None stands for the Nyquist frequency.
        "fmax": (None,),
        "center": OFF,
    },
)
PARTS = (TALKER, SAMPLING, TOKENIZER, FEATURES)

LAYERS = ConfigPart(
    "",
    computed=LAYER_SIZES,
    # The language model head is not used.
    idle=names("tie_word_embeddings max_window_layers"),
    ropes=PLAIN_ROPE,
)
LAYER_PARTS = (LAYERS,)
"""The fields of `CosyVoice-BlankEN/config.json`."""
