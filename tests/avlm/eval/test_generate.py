"""Generation: the same answers in any batch, resumable, and from the right weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avlm.data.demo import draw_frames, draw_sound, plan_clips, write_clip
from avlm.errors import UserError
from avlm.eval.checkpoint import Weights, choose
from avlm.eval.generate import infer
from avlm.eval.metrics import read_predictions
from avlm.models.qwen3_omni_moe.tiny import make_tiny
from avlm.recipe.schema import Batch, Data, Evaluation, Model, Recipe, Schedule

NEW_TOKENS = 6


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, clips with and without sound, a sound file and a picture, and rows about them."""
    import av
    import soundfile
    from PIL import Image

    folder = tmp_path_factory.mktemp("generate")
    make_tiny(folder / "tiny", 0)
    data = folder / "data"
    data.mkdir()
    first, second = plan_clips(0, 2, 0)["train"]
    write_clip(data / "loud.mp4", draw_frames(first), draw_sound(first, np.random.default_rng(0)), first.fps)
    with av.open(str(data / "still.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=second.fps)
        stream.height, stream.width, stream.pix_fmt = second.side, second.side, "yuv420p"
        for pixels in draw_frames(second):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    soundfile.write(data / "tone.wav", draw_sound(second, np.random.default_rng(1)), 16_000)
    Image.fromarray(draw_frames(first)[0]).save(data / "picture.png")
    media = {
        "loud": [("video", "loud.mp4")],
        "still": [("video", "still.mp4")],
        "tone": [("audio", "tone.wav")],
        "picture": [("image", "picture.png")],
        "text": [],
        "many": [("video", "still.mp4"), ("video", "loud.mp4"), ("image", "picture.png")],
        "loud again": [("video", "loud.mp4")],
    }
    lines = []
    for number, (id, parts) in enumerate(media.items()):
        question = ["Which two colors?\nA. red and green\nB. green and blue", "How high is the tone?"][number % 2]
        content = [{"type": kind, "path": path} for kind, path in parts] + [{"type": "text", "text": question}]
        answer = {"role": "assistant", "content": ["B", "low"][number % 2]}
        lines.append({"id": id, "class": "c", "conversation": [{"role": "user", "content": content}, answer]})
    (data / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def recipe_of(home: Path, **data: Any) -> Recipe:
    return Recipe(
        name="test",
        model=Model(family="qwen3_omni_moe", checkpoint=str(home / "tiny")),
        batch=Batch(global_batch_size=1),
        schedule=Schedule(max_steps=1),
        data=Data(
            train=[str(home / "data" / "rows.jsonl")],
            video_root=str(home / "data"),
            max_video_frames=8,
            video_sample_fps=4.0,
            video_min_pixels=32 * 32,
            video_max_pixels=64 * 64,
            **{"sequence_length": 2048} | data,
        ),
        evaluation=Evaluation(batch_size=4, max_new_tokens=NEW_TOKENS),
        output_dir=str(home / "run"),
        device="cpu",
    )


def answer(home: Path, out: Path, recipe: Recipe | None = None, **more: Any) -> list[dict[str, Any]]:
    recipe = recipe or recipe_of(home)
    weights = more.pop("weights", None) or choose(recipe)
    infer(recipe, recipe.data.train, weights, out, progress=False, **more)
    return read_predictions(out)


@pytest.fixture(scope="module")
def batched(home: Path) -> list[dict[str, Any]]:
    return answer(home, home / "batched.jsonl", batch_size=4)


@pytest.fixture(scope="module")
def loaded(home: Path) -> tuple[Any, Any]:
    """Model and processor."""
    import torch

    from avlm.data.processing import load_processor
    from avlm.models.qwen3_omni_moe.generation import load_for_generation

    recipe = recipe_of(home)
    model = load_for_generation(str(home / "tiny"), revision=None, dtype=torch.float32, device=torch.device("cpu"))
    return model, load_processor(recipe)


def samples_of(home: Path, processor: Any) -> list[Any]:
    from avlm.data.processing import make_sample
    from avlm.data.rows import read_rows

    rows = read_rows([home / "data" / "rows.jsonl"], home / "data")
    return [make_sample(row, processor, processor.limits, with_answer=False) for row in rows]


def test_fields(batched: list[dict[str, Any]]) -> None:
    assert len(batched) == 7
    by_id = {line["id"]: line for line in batched}
    line = by_id["many"]
    assert set(line) == {"id", "class", "question", "answer", "reference", "choices", "media", "finished"}
    assert line["media"][1] == {"type": "video", "path": "loud.mp4"}
    assert line["question"].startswith("How high") and line["reference"] == "low" and line["choices"] is None
    assert by_id["loud"]["choices"] == {"A": "red and green", "B": "green and blue"}
    assert all(isinstance(one["answer"], str) for one in batched)
    assert [one["id"] for one in batched][:2] == ["loud", "loud again"]


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_answers_do_not_depend_on_the_batch(
    home: Path, batched: list[dict[str, Any]], tmp_path: Path, batch_size: int
) -> None:
    assert answer(home, tmp_path / "p.jsonl", batch_size=batch_size) == batched


def test_tokens_are_the_argmax_of_a_full_forward_pass(home: Path, loaded: tuple[Any, Any]) -> None:
    """Prompt and answer in one pass, without cache and padding, positions from the data path."""
    import torch

    from avlm.data.collate import collate
    from avlm.eval.generate import generate

    model, processor = loaded
    samples = samples_of(home, processor)
    texts = generate(model, processor, samples, NEW_TOKENS)
    distinct = set()
    for sample, (text, _) in zip(samples, texts, strict=True):
        batch = {k: v for k, v in collate([sample], processor.pad_id).items() if k != "labels"}
        tokens: list[int] = []
        for _ in range(NEW_TOKENS):
            with torch.inference_mode():
                logits = model(**batch, use_cache=False).logits[0, -1]
            tokens.append(int(logits.argmax()))
            if tokens[-1] in processor.end_of_turn_ids:
                break
            last = batch["position_ids"][..., -1:]
            batch["input_ids"] = torch.cat([batch["input_ids"], torch.tensor([[tokens[-1]]])], 1)
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
            batch["position_ids"] = torch.cat([batch["position_ids"], last + 1], -1)
        kept = [token for token in tokens if token not in processor.end_of_turn_ids]
        assert text == processor.tokenizer.decode(kept, skip_special_tokens=True).strip(), sample.id
        distinct.add(tuple(tokens))
    assert len(distinct) > 1


def test_upstream_still_drops_the_positions(home: Path, loaded: tuple[Any, Any]) -> None:
    """Fails when transformers keeps them: then the subclass in `generation.py` is no longer needed."""
    import torch
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration as Upstream

    model, _ = loaded
    positions = torch.zeros(3, 1, 2)
    ids = torch.zeros(1, 2, dtype=torch.long)
    upstream = Upstream.prepare_inputs_for_generation(model, ids, position_ids=positions, is_first_iteration=True)
    assert upstream["position_ids"] is None
    ours = model.prepare_inputs_for_generation(ids, position_ids=positions, is_first_iteration=True)
    assert ours["position_ids"] is positions
    with pytest.raises(ValueError, match="position_ids"):
        model.prepare_inputs_for_generation(ids, is_first_iteration=True)


def test_positions_matter(home: Path, loaded: tuple[Any, Any]) -> None:
    """Prompt logits move when positions do: the comparison above can fail."""
    import torch

    from avlm.data.collate import collate

    model, processor = loaded
    batch = {k: v for k, v in collate(samples_of(home, processor)[:1], processor.pad_id).items() if k != "labels"}
    with torch.inference_mode():
        right = model(**batch).logits[0, -1]
        batch["position_ids"] = torch.arange(batch["input_ids"].shape[1]).expand(3, 1, -1)
        assert not torch.allclose(right, model(**batch).logits[0, -1], atol=1e-4)


def test_left_padding_moves_rows_whole() -> None:
    import torch

    from avlm.eval.generate import left_padded

    ids = torch.tensor([[5, 6, 0, 0], [1, 2, 3, 4]])
    batch = {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "position_ids": torch.stack([10 * ids, 20 * ids, 30 * ids]).float(),
        "labels": ids,
        "pixel_values": torch.ones(3),
    }
    moved = left_padded(batch)
    assert moved["input_ids"].tolist() == [[0, 0, 5, 6], [1, 2, 3, 4]]
    assert moved["attention_mask"].tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert moved["position_ids"][1].tolist() == [[0, 0, 100, 120], [20, 40, 60, 80]]
    assert "labels" not in moved and moved["pixel_values"] is batch["pixel_values"]


def test_resume_answers_only_what_is_missing(
    home: Path, batched: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.jsonl"
    shutil.copy(home / "batched.jsonl", out)
    shutil.copy(home / "batched.settings.json", tmp_path / "p.settings.json")
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # the fourth line is torn
    recipe = recipe_of(home)
    result = infer(recipe, recipe.data.train, choose(recipe), out, progress=False)
    assert (result.reused, result.generated, len(result.ids)) == (3, 4, 7)
    assert out.read_bytes() == whole

    monkeypatch.setattr("avlm.data.processing.load_processor", None)  # all is done: nothing is loaded
    result = infer(recipe, recipe.data.train, choose(recipe), out, progress=False)
    assert (result.reused, result.generated) == (7, 0)


def test_other_settings_do_not_mix(home: Path, batched: list[dict[str, Any]], tmp_path: Path) -> None:
    out = home / "batched.jsonl"
    before = out.read_bytes()
    recipe = recipe_of(home)
    other = tmp_path / "other"
    make_tiny(other, 1)
    attempts: list[tuple[str, Callable[[], Any]]] = [
        ("checkpoint", lambda: answer(home, out, weights=choose(recipe, str(other)))),
        ("max_new_tokens", lambda: answer(home, out, max_new_tokens=3)),
        ("ablation", lambda: answer(home, out, ablation="mute_audio")),
        ("media budget", lambda: answer(home, out, recipe_of(home, audio_in_video=False))),
    ]
    for name, attempt in attempts:
        with pytest.raises(UserError, match=f"another {name}; --overwrite"):
            attempt()
        assert out.read_bytes() == before
    assert len(answer(home, out, batch_size=2)) == 7  # the batch size does not matter
    assert out.read_bytes() == before


def test_overwrite_starts_anew(home: Path, batched: list[dict[str, Any]], tmp_path: Path) -> None:
    out = tmp_path / "p.jsonl"
    out.write_text('{"id": "x"}\n')
    with pytest.raises(UserError, match="not known which model"):
        answer(home, out)
    assert answer(home, out, overwrite=True) == batched


def test_limit(home: Path, tmp_path: Path, batched: list[dict[str, Any]]) -> None:
    assert [line["id"] for line in answer(home, tmp_path / "p.jsonl", limit=2)] == ["loud", "still"]
    assert sorted(line["id"] for line in answer(home, tmp_path / "p.jsonl")) == sorted(b["id"] for b in batched)


@pytest.mark.parametrize("ablation", ["mute_audio", "blank_video", "shuffle_frames"])
def test_ablations_reach_the_model(home: Path, loaded: tuple[Any, Any], ablation: Any) -> None:
    """The encoded media change in the input that is taken away, and nothing else does."""
    import torch

    from avlm.data.media import read_media
    from avlm.data.rows import read_rows
    from avlm.eval.ablations import ablate

    _, processor = loaded
    row = read_rows([home / "data" / "rows.jsonl"], home / "data")[0]
    media = [read_media(ref, processor.limits, processor.factor) for ref in row.media]
    plain = processor.encode(row, media, with_answer=False)
    changed = processor.encode(row, ablate(media, ablation, row.id), with_answer=False)
    assert torch.equal(plain.input_ids, changed.input_ids) and torch.equal(plain.position_ids, changed.position_ids)
    same_sound = torch.equal(plain.audio[0], changed.audio[0])
    same_picture = torch.equal(plain.media["pixel_values_videos"], changed.media["pixel_values_videos"])
    assert (same_sound, same_picture) == ((False, True) if ablation == "mute_audio" else (True, False))


def test_too_long_rows(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl:\d+: row '.*' ?.*data\.sequence_length is 75.*too_long=report"):
        answer(home, tmp_path / "p.jsonl", recipe_of(home, sequence_length=75))
    assert not (tmp_path / "p.jsonl").exists()
    recipe = recipe_of(home, sequence_length=75, too_long="report")
    result = infer(recipe, recipe.data.train, choose(recipe), tmp_path / "p.jsonl", progress=False)
    lines = {line["id"]: line for line in read_predictions(tmp_path / "p.jsonl")}
    left_out = [line for line in lines.values() if line["answer"] is None]
    assert len(lines) == 7 and 0 < len(left_out) == result.skipped < 7
    assert all("data.sequence_length is 75" in line["skipped"] for line in left_out)


def test_checkpoint_settings_do_not_change_greedy_answers(
    home: Path, batched: list[dict[str, Any]], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(home / "tiny", copy)
    settings = {"do_sample": True, "temperature": 3.0, "repetition_penalty": 5.0, "max_length": 3}
    (copy / "generation_config.json").write_text(json.dumps(settings))
    assert answer(home, tmp_path / "p.jsonl", weights=choose(recipe_of(home), str(copy))) == batched


def test_adapter(home: Path, loaded: tuple[Any, Any], batched: list[dict[str, Any]], tmp_path: Path) -> None:
    """An adapter that peft wrote gives the answers of peft's own model; one for another model is refused."""
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file

    from avlm.eval.generate import generate
    from avlm.models.qwen3_omni_moe.generation import load_for_generation

    arguments: dict[str, Any] = {"revision": None, "dtype": torch.float32, "device": torch.device("cpu")}
    model = load_for_generation(str(home / "tiny"), **arguments)
    torch.manual_seed(0)
    targets = r"model\.layers\.\d+\.self_attn\.(q|k|v|o)_proj"
    wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=64, target_modules=targets, init_lora_weights=False))
    wrapped.save_pretrained(tmp_path / "adapter")
    _, processor = loaded
    expected = generate(model, processor, samples_of(home, processor), NEW_TOKENS)

    weights = choose(recipe_of(home), str(tmp_path / "adapter"))
    assert (weights.checkpoint, weights.adapter) == (str(home / "tiny"), str(tmp_path / "adapter"))
    lines = {line["id"]: line for line in answer(home, tmp_path / "p.jsonl", weights=weights)}
    rows = [json.loads(line)["id"] for line in (home / "data" / "rows.jsonl").read_text().splitlines()]
    assert [(lines[id]["answer"], lines[id]["finished"]) for id in rows] == expected
    assert [lines[one["id"]]["answer"] for one in batched] != [one["answer"] for one in batched]

    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    name, value = next((k, v) for k, v in tensors.items() if ".lora_B" in k)
    for changed in (
        {**tensors, name.replace("layers.0", "layers.9"): value.clone()},
        {k: tensors[k] for k in tensors if k != name},
    ):
        save_file(changed, file, {"format": "pt"})
        with pytest.raises(UserError, match=r"belongs to another model: .* is in only one of the two"):
            load_for_generation(str(home / "tiny"), adapter=str(tmp_path / "adapter"), **arguments)


def test_adapter_of_the_whole_model(home: Path, tmp_path: Path) -> None:
    """Names as the training stack writes them, one matrix pair for each expert: the same logits as merged weights."""
    import torch
    from safetensors.torch import save_file

    from avlm.models.qwen3_omni_moe.generation import load_for_generation

    arguments: dict[str, Any] = {"revision": None, "dtype": torch.float32, "device": torch.device("cpu")}
    merged = load_for_generation(str(home / "tiny"), **arguments)
    state = merged.state_dict()
    random = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    modules: list[str] = []

    def adapt(module: str, weight: torch.Tensor) -> None:
        a, b = (0.2 * torch.randn(n, m, generator=random) for n, m in ((4, weight.shape[1]), (weight.shape[0], 4)))
        modules.append(module)
        stem = f"thinker.base_model.model.{module}"
        tensors.update({f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b})
        weight += 8 / 4 * b @ a  # alpha / rank

    with torch.no_grad():
        for layer in (0, 1):
            stem = f"model.layers.{layer}"
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                adapt(f"{stem}.self_attn.{name}", state[f"{stem}.self_attn.{name}.weight"])
            experts = f"{stem}.mlp.experts"
            for number in range(8):
                gate, up = state[f"{experts}.gate_up_proj"][number].chunk(2)
                adapt(f"{experts}.{number}.gate_proj", gate)
                adapt(f"{experts}.{number}.up_proj", up)
                adapt(f"{experts}.{number}.down_proj", state[f"{experts}.down_proj"][number])
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(config))

    adapted = load_for_generation(str(home / "tiny"), adapter=str(folder), **arguments)
    plain = load_for_generation(str(home / "tiny"), **arguments)
    ids = torch.arange(30, 50)[None]
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(20).expand(3, 1, -1),
    }
    with torch.inference_mode():
        logits = [model(**batch).logits for model in (adapted, merged, plain)]
    assert torch.allclose(logits[0], logits[1], atol=1e-4) and not torch.allclose(logits[0], logits[2], atol=1e-1)


def test_incomplete_weights_are_refused(home: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    copy = tmp_path / "copy"
    shutil.copytree(home / "tiny", copy)
    tensors = load_file(copy / "model.safetensors")
    del tensors["thinker.lm_head.weight"]
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="lacks weights of the model: lm_head"):
        answer(home, tmp_path / "p.jsonl", weights=choose(recipe_of(home), str(copy)))


def test_missing_processor_is_refused(home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(home / "tiny" / name, copy)
    with pytest.raises(UserError, match="processor"):
        answer(home, tmp_path / "p.jsonl", weights=Weights(str(copy)))
    assert not (tmp_path / "p.jsonl").exists()


def test_family_without_generation(home: Path, tmp_path: Path) -> None:
    recipe = recipe_of(home).model_copy(update={"model": Model(family="nemotron_3_nano_omni", checkpoint="x/y")})
    with pytest.raises(UserError, match="generation for nemotron_3_nano_omni is not supported yet"):
        infer(recipe, recipe.data.train, Weights("x/y"), tmp_path / "p.jsonl", progress=False)
