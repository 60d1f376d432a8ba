from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoProcessor, GenerationConfig, Qwen3OmniMoeThinkerForConditionalGeneration

from avlm.errors import UserError
from avlm.models.qwen3_omni_moe.tiny import make_tiny
from avlm.utils.folder import tree_hash


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    assert make_tiny(path, 0) == "written"
    return path


@pytest.fixture(scope="module")
def processor(folder: Path) -> Any:
    return AutoProcessor.from_pretrained(folder, local_files_only=True)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    model, info = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(
        folder, local_files_only=True, output_loading_info=True
    )
    assert not any(info.values()), f"keys that do not fit: {info}"
    return model.eval()


def test_seed_decides_every_byte(folder: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path / "same", 0)
    make_tiny(tmp_path / "other", 1)
    assert tree_hash(tmp_path / "same") == tree_hash(folder) != tree_hash(tmp_path / "other")
    assert make_tiny(folder, 0) == "reused"
    with pytest.raises(UserError, match="seed 0 instead of 1"):
        make_tiny(folder, 1)


def test_layout_is_that_of_a_released_checkpoint(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    assert all(name.startswith("thinker.") for name in weights)
    layer = "thinker.model.layers.1.mlp"
    for expert in range(8):
        assert weights[f"{layer}.experts.{expert}.gate_proj.weight"].shape == (32, 64)
        assert weights[f"{layer}.experts.{expert}.up_proj.weight"].shape == (32, 64)
        assert weights[f"{layer}.experts.{expert}.down_proj.weight"].shape == (64, 32)
    assert weights[f"{layer}.gate.weight"].shape == (8, 64)
    assert not any("gate_up_proj" in name for name in weights)
    assert sum(v.numel() for v in weights.values()) < 700_000
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3OmniMoeForConditionalGeneration"]
    assert config["model_type"] == "qwen3_omni_moe" and config["enable_audio_output"] is False
    assert config["thinker_config"]["position_id_per_seconds"] == 13
    assert config["thinker_config"]["text_config"]["num_experts_per_tok"] == 2
    assert type(AutoConfig.from_pretrained(folder)).__name__ == "Qwen3OmniMoeConfig"


def test_experts_are_loaded_where_they_belong(folder: Path, model: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    stem = "thinker.model.layers.0.mlp.experts.3"
    loaded = model.model.layers[0].mlp.experts
    both = torch.cat([weights[f"{stem}.gate_proj.weight"], weights[f"{stem}.up_proj.weight"]])
    assert torch.equal(loaded.gate_up_proj[3], both)
    assert torch.equal(loaded.down_proj[3], weights[f"{stem}.down_proj.weight"])


def test_spread_of_the_weights(folder: Path) -> None:
    """Matrices and convolutions: 1 / sqrt(fan-in), which sound needs to be learned."""
    seen = 0
    for name, value in load_file(folder / "model.safetensors").items():
        assert torch.isfinite(value).all(), name
        if value.dim() < 2:
            constant = 0.0 if name.endswith("bias") else 1.0
            assert (value == constant).all(), name
        else:
            wanted = 0.02 if "embed_tokens" in name or "pos_embed" in name else value[0].numel() ** -0.5
            assert value.std().item() == pytest.approx(wanted, rel=0.2), name
            seen += value.dim() > 2
    assert seen >= 4, "convolutions of both towers"


def test_tokenizer_writes_back_what_it_reads(processor: Any) -> None:
    tokenizer = processor.tokenizer
    for text in (string.printable, "Grüße, 世界! 🎬", "Which color comes first?\nA. red"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) <= 640
    for word in ("red", "A", "low", "yes", "<|im_start|>", "<|im_end|>", "<|video_pad|>"):
        assert len(tokenizer.encode(word)) == 1, word
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_chat_template(processor: Any) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "video"}, {"type": "audio"}, {"type": "image"},
                                     {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A dog."}]},
        {"role": "user", "content": "And now?"},
    ]  # fmt: skip
    wanted = (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|><|audio_start|><|audio_pad|><|audio_end|>"
        "<|vision_start|><|image_pad|><|vision_end|>What?<|im_end|>\n"
        "<|im_start|>assistant\nA dog.<|im_end|>\n"
        "<|im_start|>user\nAnd now?<|im_end|>\n"
    )
    assert processor.apply_chat_template(chat, tokenize=False) == wanted
    with_header = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert with_header == wanted + "<|im_start|>assistant\n"


def test_generates_from_video_sound_and_text(processor: Any, model: Any) -> None:
    chat = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What?"}]}]
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    rng = np.random.default_rng(0)
    inputs = processor(
        text=[text],
        videos=[torch.from_numpy(rng.integers(0, 255, (8, 3, 64, 64), dtype=np.uint8))],
        audio=[rng.standard_normal(32_000).astype(np.float32)],
        return_tensors="pt",
        videos_kwargs={"use_audio_in_video": True, "fps": 4.0, "do_resize": False},
    )
    ids = inputs["input_ids"][0].tolist()
    config = model.config
    assert ids.count(config.video_token_id) == 4 * 2 * 2  # patches of two frames, 32 × 32 pixels
    assert ids.count(config.audio_token_id) == 26  # 13 a second
    with torch.no_grad():
        output = model.generate(**inputs, use_audio_in_video=True, max_new_tokens=4, do_sample=False)
    assert output.shape[1] > len(ids)


def test_generation_stops_at_the_end_of_the_turn(folder: Path, processor: Any) -> None:
    config = GenerationConfig.from_pretrained(folder)
    tokenizer = processor.tokenizer
    assert config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert config.pad_token_id == tokenizer.convert_tokens_to_ids("<|endoftext|>")


def test_sound_settings(processor: Any) -> None:
    mel = processor.feature_extractor
    assert (mel.feature_size, mel.sampling_rate, mel.hop_length, mel.n_fft) == (128, 16_000, 160, 400)
