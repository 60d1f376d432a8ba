"""Nemotron-3-Nano-Omni on AutoModel: batches, packs, media, adapters, on a tiny model (`tests/automodel/nemotron.py`).

Tests called `test_upstream_…` fail when a defect that a patch repairs is gone; then the patch can go.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from avlm.data.types import IGNORE, Media, MediaLimits, Sample
from avlm.models.nemotron_3_nano_omni.processing import Nemotron3NanoOmniProcessor
from tests.avlm.models.nemotron_3_nano_omni.cases import ANSWER, CASES, audio, image, make_row, video
from tests.avlm.models.nemotron_3_nano_omni.checkpoint import PICTURE, write_checkpoint

pytestmark = pytest.mark.upstream

LIMITS = MediaLimits(max_frames=8, sample_fps=4.0, min_pixels=32 * 32, max_pixels=128 * 128, audio_in_video=True)


@pytest.fixture(scope="module")
def kernels() -> Iterator[None]:
    import torch

    from tests.automodel.nemotron import kernel_modules

    with pytest.MonkeyPatch.context() as patch, torch.compiler.set_stance("force_eager"):  # compiling takes a minute
        for name, module in kernel_modules().items():
            patch.setitem(sys.modules, name, module)
        yield


@pytest.fixture(scope="module")
def stock(kernels: None) -> Any:
    """The model as upstream builds it. Vision and projectors are in bfloat16, to which upstream casts features."""
    from tests.automodel.nemotron import build

    model = build()
    for name in ("vision_model", "vision_projector", "sound_projection"):
        getattr(model, name).bfloat16()
    return model


@pytest.fixture(scope="module")
def model(kernels: None) -> Any:
    """The same weights with our patches."""
    from automodel.patches import nemotron_media, nemotron_sound_scale
    from tests.automodel.nemotron import build

    model = build()
    nemotron_media.apply(model)
    nemotron_sound_scale.apply(model)
    return model


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Nemotron3NanoOmniProcessor:
    return Nemotron3NanoOmniProcessor(str(write_checkpoint(tmp_path_factory.mktemp("nemotron"))), LIMITS)


def samples(processor: Nemotron3NanoOmniProcessor, *contents: Sequence[str | Media]) -> list[Sample]:
    return [processor.encode(*make_row(("user", content), ANSWER)) for content in contents]


def inputs(batch: dict[str, Any]) -> dict[str, Any]:
    from automodel.batches import inputs_of

    return inputs_of("nemotron_3_nano_omni")({k: v for k, v in batch.items() if k != "labels"})


def logits(model: Any, batch: dict[str, Any]) -> Any:
    import torch

    with torch.no_grad():
        return model(**inputs(batch)).logits


def apart(model: Any, rows: Sequence[Sample]) -> list[Any]:
    """Logits of each row by itself."""
    from avlm.data.collate import collate

    return [logits(model, collate([row], 0))[0] for row in rows]


def mixed(processor: Nemotron3NanoOmniProcessor) -> list[Sample]:
    return samples(
        processor,
        ["Hi"],
        [image(), "What?"],
        [video(samples=16_000), "What is shown?"],
        [audio(12_800), "x", image(32, 32, 3), video(6, (32, 96), 30_001, 4), "Which?"],
        [image(128, 32, 5), image(), "Which?"],
        [audio(9_000, 6), audio(20_000, 7)],
    )


# ---- the stand-ins


def test_kernels_and_language_model_equal_those_of_transformers(kernels: None) -> None:
    """The Mamba-2 written out for tests, in AutoModel's class, against transformers' own class and its own Mamba-2.

    Within one chunk: across chunks transformers 5.12.1 sums over the wrong dimension in its version without kernels.
    """
    import torch
    from transformers import NemotronHForCausalLM

    from tests.automodel.nemotron import build, language_config

    ours = build().language_model
    theirs = NemotronHForCausalLM(language_config()).float().eval()
    names = {"model.embed_tokens.": "model.embeddings.", "model.norm.": "model.norm_f.", "._fp32_params.": "."}
    state = {}
    for name, value in ours.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        if name.endswith(("experts.gate_and_up_projs", "experts.down_projs")):
            name = name.replace("gate_and_up_projs", "up_proj").replace("down_projs", "down_proj")
            value = value.transpose(1, 2)
        state[name] = value
    theirs.load_state_dict(state)
    ids = torch.randint(0, 512, (2, 21), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
        found = ours(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    assert expected.std() > 0.1
    assert torch.allclose(found, expected, atol=2e-5)


# ---- media


@pytest.mark.parametrize(
    "case", ["image", "video", "video of odd length", "wide video", "audio", "audio, multiple of 80 ms", "text"]
)
def test_equal_to_upstream_where_that_works(stock: Any, processor: Nemotron3NanoOmniProcessor, case: str) -> None:
    """One image, clip or sound: the features and places of upstream's own forward pass, bit for bit."""
    import torch

    from automodel.patches import nemotron_media
    from avlm.data.collate import collate
    from avlm.models.nemotron_3_nano_omni.pictures import pictures

    batch = collate([processor.encode(*make_row(*CASES[case]))], 0)
    ours = inputs(batch)
    theirs = {k: v for k, v in ours.items() if k not in ("pixel_values", "imgs_sizes", "num_frames")}
    if "pixel_values" in ours:
        ((is_clip, picture),) = pictures(ours["pixel_values"], ours["imgs_sizes"], ours["num_frames"])
        theirs |= (
            {"pixel_values_videos": picture.bfloat16()}
            if is_clip
            else {"pixel_values": picture, "imgs_sizes": ours["imgs_sizes"]}
        )
    try:
        embedded: list[Any] = []
        hook = stock.language_model.register_forward_pre_hook(
            lambda module, args, kwargs: embedded.append(kwargs["inputs_embeds"]), with_kwargs=True
        )
        with torch.no_grad():
            stock(**theirs)
            nemotron_media.apply(stock)
            stock(**ours)
    finally:
        hook.remove()
        stock.__dict__.pop("forward", None)
    assert torch.equal(embedded[0], embedded[1])


def test_rows_of_a_batch_do_not_depend_on_each_other(model: Any, processor: Nemotron3NanoOmniProcessor) -> None:
    import torch

    from avlm.data.collate import collate

    rows = mixed(processor)
    together = logits(model, collate(rows, 0))
    for found, expected in zip(together, apart(model, rows), strict=True):
        assert torch.allclose(found[: len(expected)], expected, atol=2e-5)


def test_media_change_the_rows_they_belong_to(model: Any, processor: Nemotron3NanoOmniProcessor) -> None:
    """Another image, clip or sound changes its own row and no other."""
    from avlm.data.collate import collate

    contents: list[list[str | Media]] = [
        [image(), "What?"],
        [video(samples=16_000), "What?"],
        [audio(12_800), "What?"],
    ]
    before = logits(model, collate(samples(processor, *contents), 0))
    changes: list[tuple[int, Media]] = [
        (0, image(seed=9)),
        (1, video(samples=16_000, seed=9)),
        (2, audio(12_800, seed=9)),
    ]
    for row, other in changes:
        changed = [*contents]
        changed[row] = [other, "What?"]
        after = logits(model, collate(samples(processor, *changed), 0))
        differs = (after - before).abs().amax((1, 2)) > 1e-3
        assert differs.tolist() == [number == row for number in range(3)]


def test_silence_that_keeps_ranks_in_step_changes_nothing(model: Any, processor: Nemotron3NanoOmniProcessor) -> None:
    """It runs the sound encoder in every pass, with bit-equal results."""
    import torch

    from automodel.patches import nemotron_media, nemotron_sound_scale
    from avlm.data.collate import collate
    from tests.automodel.nemotron import build

    always = build()
    nemotron_media.apply(always, always_hear=True)
    nemotron_sound_scale.apply(always)
    heard: list[int] = []
    always.sound_encoder.register_forward_hook(lambda *_: heard.append(1))
    for rows in (samples(processor, ["Hi"], [image(), "What?"]), samples(processor, ["Hi"], [audio(), "What?"])):
        batch = collate(rows, 0)
        assert torch.equal(logits(always, batch), logits(model, batch))
    assert len(heard) == 2


def test_wrong_numbers_of_features_are_errors(model: Any, processor: Nemotron3NanoOmniProcessor) -> None:
    from avlm.data.collate import collate

    batch = inputs(collate(samples(processor, [image(), audio(12_800), "What?"]), 0))
    for missing in (("pixel_values", "imgs_sizes", "num_frames"), ("sound_features", "sound_attention_mask")):
        with pytest.raises(RuntimeError, match=r"placeholders of a (picture|sound), but 0 features"):
            model(**{k: v for k, v in batch.items() if k not in missing})
    batch["input_ids"] = batch["input_ids"].clone()
    batch["input_ids"][0, (batch["input_ids"][0] == PICTURE).nonzero()[0]] = 7
    with pytest.raises(RuntimeError, match="5 placeholders of a picture, but 6 features"):
        model(**batch)


# ---- packs


def test_documents_of_a_pack_do_not_see_each_other(model: Any, processor: Nemotron3NanoOmniProcessor) -> None:
    """Attention and Mamba layers: each document's logits equal those it has alone, in every place of the pack."""
    import torch

    from avlm.data.collate import collate_packs

    rows = mixed(processor)
    alone = apart(model, rows)
    for order in ([2, 0, 3, 1, 5, 4], [4, 3, 2, 1, 0, 5]):
        packed = [rows[i] for i in order]
        size = sum(len(row.input_ids) for row in packed) + 9
        (found,) = logits(model, collate_packs([packed], size, 0))
        start = 0
        for i in order:
            stop = start + len(alone[i])
            assert torch.allclose(found[start:stop], alone[i], atol=2e-5)
            start = stop
        assert torch.isfinite(found).all()


def test_pack_has_the_gradient_of_its_documents(model: Any, processor: Nemotron3NanoOmniProcessor) -> None:
    import torch
    from torch.nn.functional import cross_entropy

    from avlm.data.collate import collate, collate_packs

    def gradient(batches: list[dict[str, Any]]) -> dict[str, Any]:
        model.zero_grad()
        for batch in batches:
            out = model(**inputs(batch)).logits
            cross_entropy(out.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE, reduction="sum").backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    rows = mixed(processor)[:4]
    apart, packed = (
        gradient(batches) for batches in ([collate([r], 0) for r in rows], [collate_packs([rows], 700, 0)])
    )
    model.zero_grad()
    assert apart.keys() == packed.keys() and len(apart) > 60
    for name, value in apart.items():
        assert torch.allclose(packed[name], value, rtol=1e-3, atol=1e-4 * float(value.abs().max()) + 1e-6), name


@pytest.mark.parametrize("documents", [1, 3])
def test_packed_inputs_equal_those_of_upstream(processor: Nemotron3NanoOmniProcessor, documents: int) -> None:
    """Keys and values of upstream's collator for packs with this attention, on the same packs."""
    import torch
    from nemo_automodel.components.datasets.vlm.collate_fns import neat_packed_vlm_collater

    from avlm.data.collate import collate_packs, shift_labels

    rows = mixed(processor)[:documents]
    size = sum(len(row.input_ids) for row in rows) + 5
    doc = torch.cat([torch.full_like(row.input_ids, number) for number, row in enumerate(rows, 1)])
    pack = {
        "input_ids": torch.cat([row.input_ids for row in rows]),
        "labels": torch.cat([shift_labels(row.labels) for row in rows]),
        "position_ids": torch.cat([row.position_ids for row in rows]),
        "attention_mask": doc,
    }
    theirs = neat_packed_vlm_collater([pack], padding_idx=0, max_length=size, attn_implementation="sdpa")
    batch = collate_packs([rows], size, 0)
    ours = {**inputs(batch), "labels": batch["labels"]}
    del theirs["mm_token_type_ids"]  # of another family
    media = {"pixel_values", "imgs_sizes", "num_frames", "sound_features", "sound_attention_mask"}
    if documents == 1:  # upstream leaves the numbers out, and its Mamba layers fail
        assert "_packed_seq_ids" not in theirs
        theirs["_packed_seq_ids"] = ours["_packed_seq_ids"]
    assert ours.keys() - media == theirs.keys()
    mine, their = ours.pop("attention_mask"), theirs.pop("attention_mask")
    for name in theirs:
        assert torch.equal(ours[name], theirs[name]), name
    real = batch["doc"][0] > 0
    assert mine.dtype == their.dtype == torch.bool and mine.shape == their.shape
    assert torch.equal(mine[0, 0][real], their[0, 0][real])
    assert torch.equal(mine[0, 0][~real], torch.eye(size, dtype=torch.bool)[~real]) and not their[0, 0][~real].any()


def test_sound_mask_leaves_out_the_empty_last_frame(processor: Nemotron3NanoOmniProcessor) -> None:
    """As `ParakeetFeatureExtractor` gives it for the same sounds."""
    import torch
    from transformers import ParakeetFeatureExtractor

    from avlm.data.collate import collate

    sounds = [audio(12_800), audio(20_001, 3)]
    found = inputs(collate(samples(processor, [*sounds, "Which?"]), 0))
    extractor = ParakeetFeatureExtractor(feature_size=128, sampling_rate=16_000)
    expected = extractor([m.audio for m in sounds], sampling_rate=16_000, return_tensors="pt")
    assert torch.equal(found["sound_attention_mask"], expected["attention_mask"])
    assert torch.allclose(found["sound_features"], expected["input_features"], atol=1e-5)


# ---- adapters


@pytest.fixture
def adapted(kernels: None) -> Any:
    """The language model with an adapter on every Mamba mixer's two layers."""
    from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules

    from avlm.models.base import get_family
    from tests.automodel.nemotron import build

    model = build()
    targets = list(get_family("nemotron_3_nano_omni").lora_targets["mamba"])
    apply_lora_to_linear_modules(model, PeftConfig(target_modules=targets, dim=4, alpha=8, use_triton=False))
    return model


def _loss(model: Any) -> Any:
    import torch

    ids = torch.randint(0, 512, (1, 12), generator=torch.Generator().manual_seed(1))
    return model.language_model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.square().mean()


def _with_gradient(model: Any) -> dict[str, int]:
    """How many adapters of each of the two layers get one."""
    _loss(model).backward()
    got = [n for n, p in model.named_parameters() if ".lora_B." in n and p.grad is not None and p.grad.any()]
    return {layer: sum(f".{layer}." in name for name in got) for layer in ("in_proj", "out_proj")}


def test_upstream_still_passes_over_the_adapter_of_the_output_layer(adapted: Any) -> None:
    assert _with_gradient(adapted) == {"in_proj": 2, "out_proj": 0}


def test_adapters_of_both_layers_train(adapted: Any) -> None:
    from automodel.patches import mamba_out_adapter

    mamba_out_adapter.apply(adapted)
    assert _with_gradient(adapted) == {"in_proj": 2, "out_proj": 2}


def test_adapters_act_as_a_change_of_the_weight(adapted: Any) -> None:
    """With B other than zero the loss is that of the model with W + alpha / rank · B A."""
    import torch

    from automodel.patches import mamba_out_adapter
    from tests.automodel.nemotron import build

    plain = build()
    mamba_out_adapter.apply(adapted)
    before = float(_loss(plain))
    with torch.no_grad():
        assert float(_loss(adapted)) == pytest.approx(before, abs=1e-6)
        for name, module in adapted.named_modules():
            if hasattr(module, "lora_B"):
                torch.manual_seed(2)
                module.lora_A.weight.normal_(std=0.3)
                module.lora_B.weight.normal_(std=0.3)
                plain.get_submodule(name).weight += 2.0 * module.lora_B.weight @ module.lora_A.weight
        assert float(_loss(adapted)) == pytest.approx(float(_loss(plain)), abs=1e-5)
    assert abs(float(_loss(plain)) - before) > 1e-3


# ---- upstream's defects


def _pictures(processor: Nemotron3NanoOmniProcessor, *contents: Sequence[str | Media]) -> dict[str, Any]:
    """Arguments of upstream's own forward pass."""
    from avlm.data.collate import collate
    from avlm.models.nemotron_3_nano_omni.pictures import pictures

    ours = inputs(collate(samples(processor, *contents), 0))
    shown = list(pictures(ours.pop("pixel_values"), sizes := ours.pop("imgs_sizes"), ours.pop("num_frames")))
    images = [picture for is_clip, picture in shown if not is_clip]
    clips = [picture.bfloat16() for is_clip, picture in shown if is_clip]
    import torch

    if images:
        ours |= {"pixel_values": torch.cat(images), "imgs_sizes": sizes[: len(images)]}
    if clips:
        same = all(clip.shape[1:] == clips[0].shape[1:] for clip in clips)
        ours["pixel_values_videos"] = torch.cat(clips) if same else [f for clip in clips for f in clip]
    return ours


def test_upstream_still_refuses_images_with_videos(stock: Any, processor: Nemotron3NanoOmniProcessor) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        stock(**_pictures(processor, [image(), "a"], [video(), "b"]))


def test_upstream_still_takes_one_size_of_clips(stock: Any, processor: Nemotron3NanoOmniProcessor) -> None:
    with pytest.raises(AttributeError, match="'list' object has no attribute 'shape'"):
        stock(**_pictures(processor, [video(), "a"], [video(4, (32, 64)), "b"]))


def test_upstream_still_mixes_up_sounds(
    stock: Any, processor: Nemotron3NanoOmniProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    """It notices that the numbers do not fit, warns, and trains on with features of padding."""
    from avlm.data.collate import collate

    batch = inputs(collate(samples(processor, [audio(8_000), "a"], [audio(30_000), "b"]), 0))
    stock(**batch)
    assert "Sound shape mismatch" in caplog.text


def test_upstream_still_scales_the_sound(stock: Any, model: Any) -> None:
    assert stock.sound_encoder.input_scale == pytest.approx(32**0.5)
    assert model.sound_encoder.input_scale == 1


def test_upstream_still_has_no_thd_packs_for_this_class(stock: Any, processor: Nemotron3NanoOmniProcessor) -> None:
    """Transformer Engine's packed form fails for want of positions, before its kernels are reached."""
    import torch

    ids = torch.tensor([[5, 6, 7, 8]])
    given = {"qkv_format": "thd", "cu_seqlens": torch.tensor([[0, 2, 4]]), "position_ids": torch.arange(4)[None]}
    stock.language_model.backend.attn = "te"
    try:
        with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'squeeze'"):
            stock(input_ids=ids, **given)
    finally:
        stock.language_model.backend.attn = "sdpa"


def test_upstream_still_gives_mamba_the_mask_of_a_pack_of_one(
    stock: Any, processor: Nemotron3NanoOmniProcessor
) -> None:
    from avlm.data.collate import collate_packs

    batch = inputs(collate_packs([samples(processor, ["Hi"])], 64, 0))
    del batch["_packed_seq_ids"]
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        stock(**batch)


def test_real_files(processor: Nemotron3NanoOmniProcessor, model: Any, tmp_path: Path) -> None:
    """From files through reader, processor, packs and model: placeholders and features agree."""
    import torch

    from avlm.data.collate import collate_packs
    from avlm.data.processing import make_sample
    from avlm.data.rows import read_rows
    from tests.avlm.data import clips

    clips.write(tmp_path / "av.mp4", clips.greys(12, 64, 96), clips.tone(1.2, 16_000))
    clips.write(tmp_path / "silent.mp4", clips.greys(9, 96, 64))
    clips.write(tmp_path / "a.wav", None, clips.tone(0.9, 16_000), sound_codec="pcm_s16le")
    lines = [
        f'{{"conversation": [{{"role": "user", "content": [{{"type": "{kind}", "path": "{name}"}}, '
        f'{{"type": "text", "text": "What?"}}]}}, {{"role": "assistant", "content": "Grey."}}]}}'
        for kind, name in (("video", "av.mp4"), ("video", "silent.mp4"), ("audio", "a.wav"))
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    rows = read_rows([str(tmp_path / "rows.jsonl")], str(tmp_path))
    encoded = [make_sample(row, processor, LIMITS) for row in rows]
    batch = collate_packs([encoded], sum(len(s.input_ids) for s in encoded), 0)
    assert torch.isfinite(logits(model, batch)).all()


def test_training_without_the_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.util import find_spec

    from automodel.train import run_recipe
    from avlm.errors import UserError
    from avlm.recipe.load import load_recipe

    for name in [name for name in sys.modules if name.startswith(("mamba_ssm", "causal_conv1d"))]:
        monkeypatch.delitem(sys.modules, name)  # the stand-in
    if find_spec("mamba_ssm") is not None:
        pytest.skip("mamba_ssm is installed")
    recipe = load_recipe("nemotron_3_nano_omni_30b_a3b/sft", ["parallel.devices_per_node=1"]).recipe
    with pytest.raises(UserError, match="needs the Python packages mamba_ssm and causal_conv1d"):
        run_recipe(recipe)
