"""Both 30B models on the meta device: counts against arithmetic from the numbers alone and published totals."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from automodel import inspect as inspection
from automodel.inspect import Inspection, inspect_recipe, render
from avlm.errors import UserError
from avlm.models.architecture import known_architecture
from avlm.recipe.load import load_recipe
from avlm.recipe.schema import Recipe

QWEN = ("qwen3_omni_moe", "Qwen/Qwen3-Omni-30B-A3B-Instruct")
NEMOTRON = ("nemotron_3_nano_omni", "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16")


def recipe(model: tuple[str, str], /, **fields: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "count",
            "model": {"family": model[0], "checkpoint": model[1]},
            "batch": {"global_batch_size": 8},
            "schedule": {"max_steps": 1},
            "data": {"train": ["a.jsonl"]},
            "parallel": {"devices_per_node": 8, "ep": 8},
            "output_dir": "out",
            **fields,
        }
    )


def lora(rank: int, *targets: str) -> dict[str, Any]:
    return {"kind": "lora", "lora": {"rank": rank, "alpha": 2 * rank, "targets": list(targets)}}


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def numbers(model: tuple[str, str]) -> dict[str, Any]:
    described = known_architecture(*model)
    assert described is not None
    return described


def qwen_sizes() -> dict[str, int]:
    """Component -> parameters, by hand from the published numbers."""
    shape = numbers(QWEN)
    text, vision, audio = shape["text"], shape["vision"], shape["audio"]
    width, head = text["hidden_size"], text["head_dim"]
    heads, groups = text["num_attention_heads"], text["num_key_value_heads"]
    attention = 2 * width * heads * head + 2 * width * groups * head + 2 * head  # q, o; k, v; norms of q and k
    experts = text["num_experts"] * 3 * width * text["moe_intermediate_size"]
    layer = attention + experts + text["num_experts"] * width + 2 * width
    decoder = text["num_hidden_layers"] * layer + 2 * text["vocab_size"] * width + width

    size, inner = vision["hidden_size"], vision["intermediate_size"]
    block = 4 * size + linear(size, 3 * size) + linear(size, size) + linear(size, inner) + linear(inner, size)
    pixels = 3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    encoder = vision["depth"] * block + linear(pixels, size) + vision["num_position_embeddings"] * size
    merged = size * vision["spatial_merge_size"] ** 2
    merger = linear(merged, merged) + linear(merged, vision["out_hidden_size"])
    deepstack = len(vision["deepstack_visual_indexes"])
    vision_projector = merger + 2 * size + deepstack * (merger + 2 * merged)

    size, inner, channels = audio["d_model"], audio["encoder_ffn_dim"], audio["downsample_hidden_size"]
    block = 4 * size + 4 * linear(size, size) + linear(size, inner) + linear(inner, size)
    convolutions = linear(9, channels) + 2 * linear(9 * channels, channels)
    mel_rows = audio["num_mel_bins"] // 8
    audio_encoder = audio["encoder_layers"] * block + convolutions + channels * mel_rows * size + 2 * size
    return {
        "vision_encoder": encoder,
        "vision_projector": vision_projector,
        "audio_encoder": audio_encoder,
        "audio_projector": linear(size, size) + linear(size, audio["output_dim"]),
        "language_model": decoder,
    }


def nemotron_sizes() -> dict[str, int]:
    """Component -> parameters, by hand from the published numbers."""
    shape = numbers(NEMOTRON)
    llm, vision, sound = shape["llm"], shape["vision"], shape["sound"]
    width = llm["hidden_size"]
    inner = llm["mamba_num_heads"] * llm["mamba_head_dim"]
    states = 2 * llm["n_groups"] * llm["ssm_state_size"]
    mamba = width * (2 * inner + states + llm["mamba_num_heads"]) + inner * width  # in, out
    mamba += (inner + states) * (llm["conv_kernel"] + 1) + 3 * llm["mamba_num_heads"] + inner  # conv; A, D, dt; norm
    heads, groups = llm["num_attention_heads"], llm["num_key_value_heads"]
    attention = 2 * width * (heads + groups) * llm["head_dim"]
    moe = llm["n_routed_experts"] * (2 * width * llm["moe_intermediate_size"] + width)  # experts, router
    moe += 2 * width * llm["moe_shared_expert_intermediate_size"]
    kinds = {"M": mamba, "*": attention, "E": moe}
    layers = sum(kinds[kind] + width for kind in llm["hybrid_override_pattern"])
    decoder = layers + 2 * llm["vocab_size"] * width + width

    size, fold = vision["hidden_size"], 3 * vision["patch_size"] ** 2
    block = 4 * size + linear(size, 3 * size) + linear(size, size)
    block += linear(size, vision["intermediate_size"]) + linear(vision["intermediate_size"], size)
    tokens = vision["position_grid"] ** 2 + vision["class_and_register_tokens"]
    encoder = vision["num_hidden_layers"] * block + tokens * size + fold * (1 + vision["frames_per_patch"]) * size
    shuffled = size * round(1 / shape["projector"]["downsample_ratio"]) ** 2
    projector = shuffled + (shuffled + width) * shape["projector"]["hidden_size"]

    size, inner, channels = sound["hidden_size"], sound["intermediate_size"], sound["subsampling_conv_channels"]
    block = 2 * 2 * size * inner + 5 * size * size + 2 * size  # two feed-forwards; q, k, v, o, relative k; u, v
    block += 3 * size * size + size * sound["conv_kernel_size"] + 2 * size + 5 * 2 * size  # convolutions; norms
    halvings = sound["subsampling_factor"].bit_length() - 1
    subsampling = linear(9, channels) + (halvings - 1) * (linear(9, channels) + linear(channels, channels))
    subsampling += linear(channels * sound["num_mel_bins"] // sound["subsampling_factor"], size)
    return {
        "vision_encoder": encoder,
        "vision_projector": projector,
        "audio_encoder": sound["num_hidden_layers"] * block + subsampling,
        "audio_projector": size + (size + width) * sound["projection_hidden_size"],
        "language_model": decoder,
    }


def nemotron_adapters(rank: int) -> int:
    """Adapters on attention, mamba and shared experts: rank x (inputs + outputs) of each linear layer."""
    llm = numbers(NEMOTRON)["llm"]
    width, kinds = llm["hidden_size"], llm["hybrid_override_pattern"]
    inner = llm["mamba_num_heads"] * llm["mamba_head_dim"]
    projection = 2 * inner + 2 * llm["n_groups"] * llm["ssm_state_size"] + llm["mamba_num_heads"]
    heads, groups = llm["num_attention_heads"] * llm["head_dim"], llm["num_key_value_heads"] * llm["head_dim"]
    ends = kinds.count("*") * 2 * ((width + heads) + (width + groups))
    ends += kinds.count("M") * ((width + projection) + (inner + width))
    ends += kinds.count("E") * 2 * (width + llm["moe_shared_expert_intermediate_size"])
    return rank * ends


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB


@pytest.fixture(scope="module")
def both() -> tuple[Inspection, Inspection, float]:
    """The SFT counts of the two models, and by how much they raised the process's peak memory (GiB)."""
    before = peak_gib()
    return inspect_recipe(recipe(QWEN)), inspect_recipe(recipe(NEMOTRON)), peak_gib() - before


@pytest.fixture(scope="module")
def qwen(both: tuple[Inspection, Inspection, float]) -> Inspection:
    return both[0]


@pytest.fixture(scope="module")
def nemotron(both: tuple[Inspection, Inspection, float]) -> Inspection:
    return both[1]


def test_qwen_parameters(qwen: Inspection) -> None:
    assert {row.component: row.parameters for row in qwen.rows} == qwen_sizes()
    language_model = next(row for row in qwen.rows if row.component == "language_model")
    assert language_model.parameters == numbers(QWEN)["published"]["language_model"] == 30_532_122_624


def test_nemotron_parameters(nemotron: Inspection) -> None:
    assert {row.component: row.parameters for row in nemotron.rows} == nemotron_sizes()
    assert nemotron.total.parameters == numbers(NEMOTRON)["published"]["parameters"] == 33_015_546_816
    language_model = next(row for row in nemotron.rows if row.component == "language_model")
    assert nemotron.total.parameters + language_model.buffers == 33_015_549_760  # with the routers' biases
    assert "RADIO" in render(nemotron)


def test_sft_trains_the_language_model(qwen: Inspection, nemotron: Inspection) -> None:
    for result in (qwen, nemotron):
        for row in result.rows:
            assert row.trainable == (row.parameters if row.component == "language_model" else 0)
    assert 0.90 <= nemotron.total.trainable / nemotron.total.parameters <= 0.96


def test_open_projectors_train_too() -> None:
    freeze = {"vision_projector": False, "audio_projector": False}
    result = inspect_recipe(recipe(NEMOTRON, freeze=freeze))
    sizes = nemotron_sizes()
    opened = ("vision_projector", "audio_projector", "language_model")
    assert result.total.trainable == sum(sizes[name] for name in opened)


@pytest.mark.parametrize(("rank", "millions"), [(16, 14), (64, 55)])
def test_nemotron_adapters(rank: int, millions: int) -> None:
    result = inspect_recipe(recipe(NEMOTRON, method=lora(rank, "attention", "mamba", "shared_experts")))
    assert result.total.trainable == nemotron_adapters(rank)
    assert round(result.total.trainable / 1e6) == millions
    assert result.total.parameters == 33_015_546_816 + nemotron_adapters(rank)


def test_qwen_expert_adapters() -> None:
    result = inspect_recipe(recipe(QWEN, method=lora(8, "attention", "experts")))
    text = numbers(QWEN)["text"]
    width, inner, head = text["hidden_size"], text["moe_intermediate_size"], text["head_dim"]
    heads, groups = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    attention = 2 * (width + heads) + 2 * (width + groups)
    experts = text["num_experts"] * ((width + 2 * inner) + (inner + width))
    assert result.total.trainable == 8 * text["num_hidden_layers"] * (attention + experts)


def test_ranks_share_the_model(qwen: Inspection, nemotron: Inspection) -> None:
    for result in (qwen, nemotron):
        for row in result.rows:
            assert row.parameters / 8 <= row.rank_parameters
        language_model = result.rows[-1]
        assert language_model.rank_parameters < 1.001 * language_model.parameters / 8
        assert language_model.rank_trainable == language_model.rank_parameters
        assert language_model.rank_bytes == pytest.approx(2 * language_model.rank_parameters, rel=1e-4)  # bfloat16


def test_memory_stays_small(both: tuple[Inspection, Inspection, float]) -> None:
    assert both[2] < 3


def test_directory_of_a_checkpoint(tmp_path: Path) -> None:
    from transformers import Qwen3OmniMoeConfig

    text = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    text |= {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "vocab_size": 32}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}
    audio = {"encoder_layers": 1, "d_model": 16, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "output_dim": 16}
    thinker = {"text_config": text, "vision_config": vision, "audio_config": audio}
    Qwen3OmniMoeConfig(thinker_config=thinker).save_pretrained(tmp_path)
    parallel = {"devices_per_node": 2, "ep": 2}
    result = inspect_recipe(recipe((QWEN[0], str(tmp_path)), parallel=parallel))
    attention = 2 * 16 * 16 + 2 * 16 * 8 + 2 * 8
    layer = attention + 2 * 3 * 16 * 8 + 2 * 16 + 2 * 16
    assert result.rows[-1].parameters == layer + 2 * 32 * 16 + 16
    assert result.source == str(tmp_path / "config.json")


def test_one_rank_holds_everything() -> None:
    result = inspect_recipe(recipe(QWEN, parallel={"devices_per_node": 1}))
    assert result.total.rank_parameters == result.total.parameters


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": {"family": "qwen3_omni_moe", "checkpoint": "someone/else"}}, "Qwen/Qwen3-Omni-30B-A3B-Instruct"),
        ({"parallel": {"tp": 2}}, r"parallel\.tp: AutoModel has no TP plan"),
        ({"parallel": {"ep": 3}}, r"parallel\.ep: 3 does not divide the 8 ranks"),
        ({"parallel": {"strategy": "ddp"}}, r"parallel\.strategy"),
        ({"method": lora(8, "mamba")}, "has no 'mamba'"),
        ({"freeze": {"talker": False}}, r"freeze\.talker"),
    ],
)
def test_bad_input(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        inspect_recipe(recipe(QWEN, **fields))


SHIPPED = sorted(Path(__file__).parents[2].glob("recipes/*_30b_a3b/*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_shipped_recipes(path: Path) -> None:
    shipped = load_recipe(str(path)).recipe
    result = inspect_recipe(shipped)
    sizes = qwen_sizes() if shipped.model.family == QWEN[0] else nemotron_sizes()
    if shipped.method.lora is None:
        assert result.total.parameters == sum(sizes.values())
        assert 0.90 <= result.total.trainable / result.total.parameters <= 0.97
    else:
        assert result.total.parameters == sum(sizes.values()) + result.total.trainable
        assert result.total.trainable < 1e8
    assert result.world_size == shipped.world_size


def test_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], qwen: Inspection) -> None:
    monkeypatch.setattr(inspection, "inspect_recipe", lambda wanted, ranks: qwen)
    monkeypatch.setattr(inspection.logging, "disable", lambda level: None)
    path = next(str(path) for path in SHIPPED if path.stem == "sft")
    inspection.main([path, "--world-size", "8"])
    assert "30,532,122,624" in capsys.readouterr().out
    inspection.main([path, "--json"])
    assert json.loads(capsys.readouterr().out)["total"]["parameters"] == qwen.total.parameters


def test_command_line_ends_with_2_on_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspection.logging, "disable", lambda level: None)
    with pytest.raises(SystemExit) as stop:
        inspection.main(["no/such/recipe.yaml"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: no/such/recipe.yaml")
