"""Operations are those that torch counts in transformers' modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from avlm.models.flops import Blocks, Flops, load_flops
from avlm.models.nemotron_3_nano_omni.flops import flops_of
from avlm.models.qwen3_omni_moe.tiny import make_tiny


def counted(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Flops]:
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    folder = tmp_path_factory.mktemp("tiny")
    make_tiny(folder, seed=0)
    model = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval(), load_flops("qwen3_omni_moe", str(folder))


@pytest.mark.parametrize("tokens", [10, 200])
def test_decoder(tokens: int, tiny: tuple[Any, Flops]) -> None:
    model, flops = tiny
    ids = torch.randint(0, 100, (1, tokens))
    full = flops.decoder.bidirectional(tokens)  # plain attention computes masked pairs too
    assert counted(lambda: model(input_ids=ids)) == pytest.approx(full, rel=3e-4)  # rotary angles are a product too


@pytest.mark.parametrize("grid", [(1, 4, 4), (3, 8, 4)])
def test_vision_tower(grid: tuple[int, int, int], tiny: tuple[Any, Flops]) -> None:
    model, flops = tiny
    steps, rows, columns = grid
    pixels = torch.randn(steps * rows * columns, 3 * 2 * 16 * 16)
    expected = counted(lambda: model.visual(pixels, grid_thw=torch.tensor([grid])))
    assert flops.picture(2 * steps, 16 * rows, 16 * columns) == expected
    assert flops.picture(2 * steps - 1, 16 * rows, 16 * columns) == expected  # the last frame is repeated


@pytest.mark.parametrize("frames", [100, 800, 1000])
def test_audio_tower(frames: int, tiny: tuple[Any, Flops]) -> None:
    model, flops = tiny
    expected = counted(lambda: model.audio_tower(torch.randn(128, frames), feature_lens=torch.tensor([frames])))
    assert flops.sound(160 * frames) == pytest.approx(expected, rel=1e-12)


def test_published_sizes() -> None:
    """3.0 of Qwen3-30B-A3B's 3.3 billion active parameters are not in the embedding; 3.2 are Nemotron's."""
    qwen = load_flops("qwen3_omni_moe", "Qwen/Qwen3-Omni-30B-A3B-Instruct")
    nemotron = load_flops("nemotron_3_nano_omni", "anywhere")
    assert qwen.decoder.token / 2e9 == pytest.approx(3.04, abs=0.01)
    assert nemotron.decoder.token / 2e9 == pytest.approx(3.26, abs=0.01)
    assert qwen.decoder.pair == 48 * 4 * 32 * 128
    assert nemotron.decoder.pair == 6 * 4 * 32 * 128
    assert nemotron.picture(2, 512, 512) == nemotron.vision.bidirectional(32 * 32 + 10)


def test_conformer() -> None:
    """The audio tower of Nemotron, against transformers' Parakeet."""
    from transformers import ParakeetEncoder, ParakeetEncoderConfig

    shapes = {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "conv_kernel_size": 9,
        "subsampling_factor": 8,
        "subsampling_conv_channels": 16,
        "num_mel_bins": 80,
    }
    encoder = ParakeetEncoder(ParakeetEncoderConfig(**shapes, attn_implementation="eager")).eval()
    frames = 808
    expected = counted(lambda: encoder(torch.randn(1, frames, 80)))
    architecture = {
        "llm": NEMOTRON_LLM,
        "vision": {
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "intermediate_size": 8,
            "patch_size": 16,
            "frames_per_patch": 2,
            "class_and_register_tokens": 10,
        },
        "projector": {"downsample_ratio": 0.5, "hidden_size": 8},
        "sound": {**shapes, "projection_hidden_size": 0},
    }
    assert flops_of(architecture).sound(160 * frames) == pytest.approx(expected, rel=0.01)


NEMOTRON_LLM = {
    "hidden_size": 8,
    "vocab_size": 10,
    "hybrid_override_pattern": "ME*",
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
    "moe_shared_expert_intermediate_size": 12,
    "mamba_num_heads": 2,
    "mamba_head_dim": 8,
    "ssm_state_size": 4,
    "n_groups": 1,
    "conv_kernel": 4,
    "chunk_size": 16,
}


def test_blocks() -> None:
    blocks = Blocks(token=10, pair=2)
    assert blocks.causal(3) == 30 + 2 * 6
    assert blocks.bidirectional(3) == 30 + 2 * 9


def test_sound_in_windows() -> None:
    whole = Flops(Blocks(1, 1), Blocks(1, 1), Blocks(1, 1), 16, 2, 0, step_samples=100)
    windows = Flops(Blocks(1, 1), Blocks(1, 1), Blocks(1, 1), 16, 2, 0, step_samples=100, window_steps=4)
    assert whole.sound(1000) == 10 + 100
    assert windows.sound(1000) == 10 + 16 + 16 + 4
    assert windows.sound(0) == 0
