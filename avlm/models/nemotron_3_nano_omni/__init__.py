"""Nemotron-3-Nano-Omni: names of the trained module, and of the tensors in a Hugging Face checkpoint.

The two name the same parameters differently (`nemo_automodel/components/models/nemotron_omni/state_dict_adapter.py`):

| Component | Trained module | Checkpoint |
|---|---|---|
| vision encoder (RADIO) | `vision_model.` | `vision_model.` |
| vision projector | `vision_projector.{norm,linear1,linear2}.` | `mlp1.{0,1,3}.` |
| audio encoder (Parakeet) | `sound_encoder.` | `sound_encoder.encoder.` |
| audio projector | `sound_projection.` | `sound_projection.` |
| decoder | `language_model.model.{embed_tokens,layers,norm}` | `language_model.backbone.{embeddings,layers,norm_f}` |
| output head | `language_model.lm_head.` | `language_model.lm_head.` |

Every decoder layer has one `mixer`, whose kind (mamba, attention, experts) follows from the layer's number, so that the
names of the linear layers below it tell the LoRA targets apart.
"""

from __future__ import annotations

from avlm.models.base import Family

_MIXER = r"language_model\.(?:model|backbone)\.layers\.\d+\.mixer"

FAMILY = Family(
    name="nemotron_3_nano_omni",
    components={
        "vision_encoder": ("vision_model.",),
        "vision_projector": ("vision_projector.", "mlp1."),
        "audio_encoder": ("sound_encoder.",),
        "audio_projector": ("sound_projection.",),
        "language_model": ("language_model.",),
    },
    lora_targets={
        "attention": (rf"{_MIXER}\.[qkvo]_proj",),
        "mamba": (rf"{_MIXER}\.(?:in|out)_proj",),
        "shared_experts": (rf"{_MIXER}\.shared_experts\.(?:up|down)_proj",),
        "experts": (rf"{_MIXER}\.experts", rf"{_MIXER}\.experts\.\d+\.(?:up|down)_proj"),
    },
    model_types=("NemotronH_Nano_Omni_Reasoning_V3",),
    processing="avlm.models.nemotron_3_nano_omni.processing:Nemotron3NanoOmniProcessor",
    flops="avlm.models.nemotron_3_nano_omni.flops:flops",
)
