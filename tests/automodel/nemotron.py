"""A tiny Nemotron-3-Nano-Omni in AutoModel's class that runs forward and backward on a CPU.

Two parts of the real model cannot be had here and have stand-ins: the Mamba-2 kernels of `mamba_ssm` (CUDA only),
written out below after Dao & Gu (2024, arXiv:2405.21060) and compared with transformers' own Mamba-2 in
`test_nemotron.py`; and RADIO, whose code comes with the checkpoint: a linear patch embedding with the same interface.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

PICTURE, SOUND = 18, 27


# ---- kernels of mamba_ssm


def split_conv1d_scan(
    zxbcdt: torch.Tensor,
    conv1d_weight: torch.Tensor,
    conv1d_bias: torch.Tensor | None,
    dt_bias: torch.Tensor,
    A: torch.Tensor,
    D: torch.Tensor,
    chunk_size: int,
    seq_idx: torch.Tensor | None = None,
    activation: str = "silu",
    rmsnorm_weight: torch.Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: torch.Tensor | None = None,
    outproj_bias: torch.Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
    return_final_states: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
) -> torch.Tensor:
    """`mamba_split_conv1d_scan_combined`, one step of time after the other. State and convolution stop where `seq_idx`
    [B, S] changes."""
    assert headdim is not None and activation == "silu" and not norm_before_gate and not return_final_states
    batch, length, _ = zxbcdt.shape
    heads = len(dt_bias)
    inner = heads * headdim
    z, xbc, dt = zxbcdt.split([inner, conv1d_weight.shape[0], heads], dim=-1)
    index = torch.zeros(batch, length, dtype=torch.int32) if seq_idx is None else seq_idx
    assert index.shape == (batch, length)
    width = conv1d_weight.shape[1]
    mixed = torch.zeros_like(xbc)
    for back in range(width):
        earlier = F.pad(xbc, (0, 0, back, 0))[:, :length]
        same = F.pad(index, (back, 0), value=-1)[:, :length] == index
        mixed = mixed + earlier * same[..., None] * conv1d_weight[:, width - 1 - back]
    mixed = F.silu(mixed + (0 if conv1d_bias is None else conv1d_bias))
    states = (mixed.shape[-1] - inner) // 2 // ngroups
    x, b, c = mixed.split([inner, ngroups * states, ngroups * states], dim=-1)
    x = x.view(batch, length, heads, headdim).float()
    b, c = (v.view(batch, length, ngroups, states).repeat_interleave(heads // ngroups, 2).float() for v in (b, c))
    dt = F.softplus(dt.float() + dt_bias).clamp(*dt_limit)
    state = torch.zeros(batch, heads, headdim, states)
    out = []
    for t in range(length):
        goes_on = torch.ones(batch) if t == 0 else (index[:, t] == index[:, t - 1]).float()
        decay = torch.exp(dt[:, t] * A) * goes_on[:, None]
        state = state * decay[..., None, None] + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        out.append((state * c[:, t, :, None]).sum(-1) + D[:, None] * x[:, t])
    y = torch.stack(out, dim=1).reshape(batch, length, inner).to(zxbcdt.dtype)
    if rmsnorm_weight is not None:
        y = gated_rmsnorm(y, rmsnorm_weight, None, z, rmsnorm_eps, inner // ngroups)
    return y if outproj_weight is None else F.linear(y, outproj_weight, outproj_bias)


def gated_rmsnorm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = False,
) -> torch.Tensor:
    """`rmsnorm_fn`: x · silu(z), normalised over groups."""
    assert not norm_before_gate and bias is None
    gated = x.float() if z is None else x.float() * F.silu(z.float())
    groups = gated.unflatten(-1, (-1, group_size or gated.shape[-1]))
    normal = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + eps)
    return (normal.flatten(-2) * weight).to(x.dtype)


def kernel_modules() -> dict[str, ModuleType]:
    """Modules to put into `sys.modules`: `mamba_ssm` with the two functions above in it, an empty `causal_conv1d`."""
    triton = "mamba_ssm.ops.triton"
    names = ("mamba_ssm", "mamba_ssm.ops", triton, f"{triton}.ssd_combined", f"{triton}.layernorm_gated")
    modules = {name: ModuleType(name) for name in (*names, "causal_conv1d")}
    for name, module in modules.items():
        module.__path__ = []
        module.__spec__ = ModuleSpec(name, None)
    modules[f"{triton}.ssd_combined"].mamba_split_conv1d_scan_combined = split_conv1d_scan  # type: ignore[attr-defined]
    modules[f"{triton}.layernorm_gated"].rmsnorm_fn = gated_rmsnorm  # type: ignore[attr-defined]
    return modules


# ---- the model


def language_config() -> Any:
    """Two Mamba layers, one of attention, two of experts."""
    from transformers import NemotronHConfig

    return NemotronHConfig(
        vocab_size=512,
        hidden_size=32,
        hybrid_override_pattern="ME*ME",
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16,
        mamba_num_heads=4,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=2,
        conv_kernel=4,
        chunk_size=64,
        use_conv_bias=True,
        torch_dtype="float32",
    )


def build(patch_size: int = 16) -> Any:
    """AutoModel's `NemotronOmniForConditionalGeneration`, float32, in evaluation mode, the same weights each time."""
    from nemo_automodel.components.models.common import BackendConfig
    from nemo_automodel.components.models.nemotron_omni.model import (
        NemotronOmniConfig,
        NemotronOmniForConditionalGeneration,
    )
    from transformers import PretrainedConfig

    sound = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    sound |= {"conv_kernel_size": 9, "convolution_bias": False, "subsampling_conv_channels": 8, "num_mel_bins": 128}
    config = NemotronOmniConfig(
        vision_config=radio().config_class(patch_size=patch_size),
        llm_config=language_config(),
        sound_config=PretrainedConfig(**sound, projection_hidden_size=32),
        vit_hidden_size=24,
        patch_size=patch_size,
        projector_hidden_size=32,
        video_temporal_patch_size=2,
    )
    backend = BackendConfig(
        attn="sdpa", linear="torch", rms_norm="torch", rope_fusion=False, experts="torch", dispatcher="torch"
    )
    model = NemotronOmniForConditionalGeneration(config, backend=backend).float().eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5, generator=generator)
        elif "A_log" not in name and "norm" not in name:
            nn.init.normal_(parameter, std=0.1, generator=generator)
    for name, buffer in model.named_buffers():
        if "e_score_correction_bias" in name:
            nn.init.normal_(buffer, std=0.1, generator=generator)
    return model


_RADIO: list[Any] = []


def radio() -> Any:
    """RADIO's interface with one linear layer in it."""
    if _RADIO:
        return _RADIO[0]
    from types import SimpleNamespace

    from transformers import AutoModel, PretrainedConfig, PreTrainedModel

    class LinearRadioConfig(PretrainedConfig):
        model_type = "linear_radio"
        patch_size = 16

    class PatchGenerator(nn.Module):
        def __init__(self, patch_size: int) -> None:
            super().__init__()
            self.patch_size, self.embed_dim = patch_size, 24
            self.embedder = nn.Linear(3 * patch_size**2, self.embed_dim, bias=False)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            side = self.patch_size
            rows = pixels.unflatten(2, (-1, side)).unflatten(4, (-1, side))  # [N, C, h, side, w, side]
            return self.embedder(rows.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))

    class LinearRadio(PreTrainedModel):
        config_class = LinearRadioConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.radio_model = nn.Module()
            self.radio_model.model = nn.Module()
            self.radio_model.model.patch_generator = PatchGenerator(config.patch_size)
            self.radio_model.make_preprocessor_external = lambda: None
            self.post_init()

        def forward(self, pixels: torch.Tensor) -> Any:
            return SimpleNamespace(features=self.radio_model.model.patch_generator(pixels))

    AutoModel.register(LinearRadioConfig, LinearRadio)
    _RADIO.append(LinearRadio)
    return LinearRadio


# ---- a checkpoint of it

CONFIGURATION = '''\
"""The configuration class that this checkpoint brings, as the published one does."""

from transformers import NemotronHConfig, PretrainedConfig

from tests.automodel.nemotron import radio


class TinyOmniConfig(PretrainedConfig):
    model_type = "NemotronH_Nano_Omni_Reasoning_V3"
    is_composition = True

    def __init__(self, vision_config=None, llm_config=None, sound_config=None, **kwargs):
        super().__init__(**kwargs)
        if llm_config is not None:
            self.vision_config = radio().config_class(**vision_config)
            self.llm_config = NemotronHConfig(**llm_config)
            self.sound_config = PretrainedConfig(**sound_config)
'''


def write_model(folder: Path) -> Path:
    """The model of `build` as a checkpoint with the files that the processor reads, and Python code of its own."""
    from safetensors.torch import save_file

    from tests.avlm.models.nemotron_3_nano_omni.checkpoint import write_checkpoint

    model = build()
    config = {name: getattr(model.config, name).to_diff_dict() for name in ("vision_config", "llm_config")}
    config["llm_config"] |= {"torch_dtype": "float32", "pad_token_id": 0}
    config["sound_config"] = model.config.sound_config.to_diff_dict()
    write_checkpoint(
        folder,
        {
            **config,
            "auto_map": {"AutoConfig": "configuration.TinyOmniConfig"},
            "vit_hidden_size": model.config.vit_hidden_size,
            "projector_hidden_size": model.config.projector_hidden_size,
            "torch_dtype": "float32",
        },
    )
    (folder / "configuration.py").write_text(CONFIGURATION, encoding="utf-8")
    state = model.state_dict_adapter.to_hf(model.state_dict())
    save_file({name: value.contiguous().clone() for name, value in state.items()}, folder / "model.safetensors")
    return folder
