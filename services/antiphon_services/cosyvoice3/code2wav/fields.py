"""The fields of `cosyvoice3.yaml` that code2wav supports.

The classes used here are documented in `config_fields`.
"""

from __future__ import annotations

from antiphon.pipelines.cosyvoice3 import (
    CODE_RATE_HZ,
    FRAMES_PER_CODE,
    MEL_BINS,
    SAMPLE_RATE_HZ,
    SPEAKER_WIDTH,
    SPEECH_IDS,
)
from antiphon_services.stage.config_fields import ConfigPart, names

FLOW = ConfigPart(
    "flow",
    computed=names("pre_lookahead_layer decoder"),
    only={
        "!new": ("cosyvoice.flow.flow.CausalMaskedDiffWithDiT",),
        "input_size": (MEL_BINS,),
        "output_size": (MEL_BINS,),
        "spk_embed_dim": (SPEAKER_WIDTH,),
        "vocab_size": (SPEECH_IDS,),
        "input_frame_rate": (CODE_RATE_HZ,),
        "token_mel_ratio": (FRAMES_PER_CODE,),
    },
    # The look-ahead follows from the kernel size of the convolution. The other fields are only used
    # for training.
    idle=names("output_type only_mask_loss pre_lookahead_len"),
)
LOOK_AHEAD = ConfigPart(
    "flow.pre_lookahead_layer",
    computed=names("channels pre_lookahead_len"),
    only={
        "!new": ("cosyvoice.transformer.upsample_encoder.PreLookaheadLayer",),
        "in_channels": (MEL_BINS,),
    },
)
MATCHING = ConfigPart(
    "flow.decoder",
    computed=names("cfm_params estimator"),
    only={
        "!new": ("cosyvoice.flow.flow_matching.CausalConditionalCFM",),
        "n_spks": (1,),
    },
    idle=names("in_channels spk_emb_dim"),
)
SOLVER = ConfigPart(
    "flow.decoder.cfm_params.content",
    computed=names("inference_cfg_rate"),
    # The vendor's code always uses Euler's method, regardless of the value of `solver`.
    only={"t_scheduler": ("cosine",), "solver": ("euler",)},
    idle=names("sigma_min training_cfg_rate reg_loss_type"),
)
ESTIMATOR = ConfigPart(
    "flow.decoder.estimator",
    computed=names("dim depth heads dim_head ff_mult static_chunk_size"),
    only={
        "!new": ("cosyvoice.flow.DiT.dit.DiT",),
        "mel_dim": (MEL_BINS,),
        "mu_dim": (MEL_BINS,),
        "spk_dim": (MEL_BINS,),
        "long_skip_connection": (None, False),
    },
    # The vendor's attention mask allows a block to attend to all earlier blocks, regardless of the
    # value of `num_decoding_left_chunks`.
    idle=names("out_channels dropout num_decoding_left_chunks"),
)
VOCODER = ConfigPart(
    "hift",
    computed=names(
        "base_channels nb_harmonics nsf_alpha nsf_sigma nsf_voiced_threshold upsample_rates "
        "upsample_kernel_sizes istft_params resblock_kernel_sizes resblock_dilation_sizes "
        "source_resblock_kernel_sizes source_resblock_dilation_sizes lrelu_slope audio_limit "
        "f0_predictor"
    ),
    only={
        "!new": ("cosyvoice.hifigan.generator.CausalHiFTGenerator",),
        "in_channels": (MEL_BINS,),
        "sampling_rate": (SAMPLE_RATE_HZ,),
        # The vocoder's look-ahead is only implemented for this value.
        "conv_pre_look_right": (4,),
    },
)
PITCH = ConfigPart(
    "hift.f0_predictor",
    computed=names("cond_channels"),
    only={
        "!new": ("cosyvoice.hifigan.f0_predictor.CausalConvRNNF0Predictor",),
        "in_channels": (MEL_BINS,),
        "num_class": (1,),
    },
)
PARTS = (FLOW, LOOK_AHEAD, MATCHING, SOLVER, ESTIMATOR, VOCODER, PITCH)
