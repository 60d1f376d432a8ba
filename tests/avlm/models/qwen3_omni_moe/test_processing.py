from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from avlm.data.collate import collate
from avlm.data.types import IGNORE, Media, MediaInfo, MediaKind, MediaLimits, MediaRef, Role, Row, Sample, Text, Turn
from avlm.errors import UserError
from avlm.models.qwen3_omni_moe.processing import Qwen3OmniProcessor

LIMITS = MediaLimits(max_frames=8, sample_fps=4.0, min_pixels=32 * 32, max_pixels=128 * 128, audio_in_video=True)


@pytest.fixture(scope="module")
def processor(tiny_checkpoint: Path) -> Qwen3OmniProcessor:
    return Qwen3OmniProcessor(str(tiny_checkpoint), LIMITS)


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> Any:
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    return Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(tiny_checkpoint, dtype=torch.float32).eval()


def sound(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(samples).astype(np.float32) * 0.1


def pixels(frames: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (frames, height, width, 3), np.uint8)


def video(
    fps: float = 4.0, frames: int = 8, size: tuple[int, int] = (64, 64), samples: int = 0, seed: int = 0
) -> Media:
    audio = sound(samples, seed) if samples else None
    return Media("video", pixels(frames, *size, seed), np.arange(frames) / fps, 1 / fps, audio)


def audio(samples: int = 16_000, seed: int = 1) -> Media:
    return Media("audio", audio=sound(samples, seed))


def image(height: int = 64, width: int = 96, seed: int = 2) -> Media:
    return Media("image", pixels(1, height, width, seed), np.zeros(1))


Part = str | Media


def make_row(*turns: tuple[Role, Part | Sequence[Part]], id: str = "row") -> tuple[Row, list[Media]]:
    media: list[Media] = []

    def part(value: Part) -> Text | MediaRef:
        if isinstance(value, str):
            return Text(value)
        media.append(value)
        return MediaRef(value.kind, Path(f"/media/{len(media)}"), str(len(media)))

    def parts(content: Part | Sequence[Part]) -> tuple[Text | MediaRef, ...]:
        return tuple(part(p) for p in ([content] if isinstance(content, str | Media) else content))

    return Row(id, tuple(Turn(role, parts(content)) for role, content in turns), "rows.jsonl", 1), media


ANSWER: tuple[Role, str] = ("assistant", "red, then green")
AV = video(samples=32_000)

UNIFORM: dict[str, tuple[tuple[Role, Any], ...]] = {
    "text": (("user", "Which color comes first?"), ANSWER),
    "text, many turns": (("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes"), ("user", "One?"), ANSWER),
    "video": (("user", [video(), "What is shown?"]), ANSWER),
    "video behind text": (("user", ["Look: ", video(), " What is shown?"]), ANSWER),
    "video 3 fps": (("user", [video(3.0), "What?"]), ANSWER),
    "video 1.7 fps, odd frames, wide": (("user", [video(1.7, 7, (32, 96)), "What?"]), ANSWER),
    "video with sound": (("user", [AV, "What?"]), ANSWER),
    "video with sound, 3 fps": (("user", [video(3.0, 12, samples=60_000), "What?"]), ANSWER),
    "video with sound, 2.3 fps": (("user", [video(2.3, 6, samples=50_001), "What?"]), ANSWER),
    "video with little sound": (("user", [video(samples=2_000), "What?"]), ANSWER),
    "large video with little sound": (("user", [video(8.0, 2, (128, 128), samples=2_000), "What?"]), ANSWER),
    "video with much sound": (("user", [video(4.0, 2, samples=100_000), "What?"]), ANSWER),
    "two videos with sound": (("user", [AV, video(4.0, 4, (64, 32), 16_000, 3), "Which?"]), ANSWER),
    "two videos": (("user", [video(), "or", video(4.0, 4, (64, 32), seed=3), "?"]), ANSWER),
    "audio": (("user", [audio(), "What is heard?"]), ANSWER),
    "audio, odd length": (("user", [audio(20_001), "What is heard?"]), ANSWER),
    "two sounds of equal length": (("user", [audio(), audio(seed=5), "Which?"]), ANSWER),
    "image": (("user", [image(), "What is shown?"]), ANSWER),
    "two images": (("user", [image(), image(32, 32, 4), "Which?"]), ANSWER),
    "video and audio": (("user", [video(), audio(), "Do they fit?"]), ANSWER),
    "image, video with sound, audio": (("user", [image(), AV, audio(32_000), "Which?"]), ANSWER),
    "audio, video with sound, image": (("user", [audio(32_000), "x", AV, "y", image(), "Which?"]), ANSWER),
    "media in two turns": (("user", [AV, "What?"]), ("assistant", "Red."), ("user", [image(), "And?"]), ANSWER),
    "other languages": (("user", [image(), "色は？  \n\n\tÉté 🎈"]), ("assistant", "赤です。")),
}


def upstream(processor: Qwen3OmniProcessor, model: Any, row: Row, media: list[Media]) -> dict[str, Any]:
    """The same row through transformers' own processor, with the flags for this case, and its positions."""
    videos = [m for m in media if m.kind == "video"]
    sounds = [m.audio for m in media if m.audio is not None]
    in_video = any(m.audio is not None for m in videos)
    content = [
        {
            "role": t.role,
            "content": [{"type": "text", "text": p.text} if isinstance(p, Text) else {"type": p.kind} for p in t.parts],
        }
        for t in row.turns
    ]
    given: dict[str, Any] = {}
    if videos:
        given["videos"] = [torch.from_numpy(m.frames).permute(0, 3, 1, 2) for m in videos]
        given["videos_kwargs"] = {
            "size": {"shortest_edge": 1, "longest_edge": 10**9},
            "do_sample_frames": False,
            "fps": 1 / videos[0].seconds_per_frame,
            "use_audio_in_video": in_video,
            "position_id_per_seconds": 13,
        }
    if sounds:
        given["audio"] = sounds
    images = [torch.from_numpy(m.frames[0]).permute(2, 0, 1) for m in media if m.kind == "image"]
    if images:
        given |= {"images": images, "images_kwargs": {"do_resize": False}}
    text = processor.hf.apply_chat_template([content], tokenize=False)
    out = dict(processor.hf(text=text, return_tensors="pt", **given))
    if "video_second_per_grid" in out:
        out["video_second_per_grid"] = torch.as_tensor(out["video_second_per_grid"], dtype=torch.float32)
    mask = out.get("feature_attention_mask")
    out["position_ids"], _ = model.get_rope_index(
        out["input_ids"],
        out.get("image_grid_thw"),
        out.get("video_grid_thw"),
        out["attention_mask"],
        in_video,
        None if mask is None else mask.sum(1),
        out.get("video_second_per_grid"),
    )
    return out


@pytest.mark.parametrize("case", UNIFORM)
def test_equal_to_upstream(processor: Qwen3OmniProcessor, model: Any, case: str) -> None:
    row, media = make_row(*UNIFORM[case])
    sample = processor.encode(row, media)
    expected = upstream(processor, model, row, media)
    assert sample.input_ids.tolist() == expected["input_ids"][0].tolist()
    assert sample.position_ids.dtype == torch.float32
    torch.testing.assert_close(sample.position_ids, expected["position_ids"][:, 0].float(), rtol=1e-6, atol=0)
    assert sample.labels.shape == sample.input_ids.shape
    batch = collate([sample], processor.pad_id)
    names = {"pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "video_second_per_grid"}
    names |= {"input_features", "feature_attention_mask"}
    assert names & set(batch) == names & set(expected)
    for name in names & set(batch):
        assert batch[name].dtype == expected[name].dtype or name == "feature_attention_mask"
        if name != "input_features":
            torch.testing.assert_close(batch[name], expected[name].to(batch[name].dtype), rtol=0, atol=0)
    for ours, theirs in zip(sample.audio, expected.get("input_features", []), strict=True):
        # of a shorter sound, upstream's last frame sees the padding (test_features_do_not_depend_on_padding)
        same = ours.shape[1] - (ours.shape[1] < theirs.shape[1])
        torch.testing.assert_close(ours[:, :same], theirs[:, :same], rtol=0, atol=0)


@pytest.mark.parametrize("case", UNIFORM)
def test_only_answers_and_their_ends_are_supervised(processor: Qwen3OmniProcessor, case: str) -> None:
    row, media = make_row(*UNIFORM[case])
    sample = processor.encode(row, media)
    keep = sample.labels != IGNORE
    assert (sample.labels[keep] == sample.input_ids[keep]).all()
    answers = [t.parts[0].text for t in row.turns if t.role == "assistant" and isinstance(t.parts[0], Text)]
    assert processor.tokenizer.decode(sample.labels[keep]) == "".join(f"{a}<|im_end|>" for a in answers)


@pytest.mark.parametrize("case", UNIFORM)
def test_prompt_is_the_beginning_of_the_sample(processor: Qwen3OmniProcessor, case: str) -> None:
    row, media = make_row(*UNIFORM[case])
    sample, prompt = processor.encode(row, media), processor.encode(row, media, with_answer=False)
    length = len(prompt.input_ids)
    assert torch.equal(prompt.input_ids, sample.input_ids[:length])
    assert torch.equal(prompt.position_ids, sample.position_ids[:, :length])
    assert (prompt.labels == IGNORE).all()
    answer = row.turns[-1].parts[0]
    assert isinstance(answer, Text)
    assert processor.tokenizer.decode(sample.input_ids[length:]) == f"{answer.text}<|im_end|>\n"
    assert set(prompt.media) == set(sample.media) and len(prompt.audio) == len(sample.audio)


def test_an_answer_that_starts_with_a_newline_starts_a_token(processor: Qwen3OmniProcessor) -> None:
    row, _ = make_row(("user", "a"), ("assistant", "\n\nb"))
    sample, prompt = processor.encode(row, []), processor.encode(row, [], with_answer=False)
    assert torch.equal(prompt.input_ids, sample.input_ids[: len(prompt.input_ids)])
    assert processor.tokenizer.decode(sample.labels[sample.labels != IGNORE]) == "\n\nb<|im_end|>"


def info(media: Media, height: int = 0, width: int = 0) -> MediaInfo:
    samples = 0 if media.audio is None else len(media.audio)
    if media.frames is None:
        return MediaInfo("audio", duration=samples / 16_000, has_audio=True, audio_samples=samples)
    frames, height, width = media.frames.shape[:3]
    # a clip of which every frame is taken: at `sample_fps`, under the cap
    return MediaInfo(
        media.kind,
        width=width,
        height=height,
        frames=frames,
        fps=LIMITS.sample_fps,
        duration=frames / LIMITS.sample_fps,
        has_audio=samples > 0,
        audio_samples=samples,
    )


@pytest.mark.parametrize("case", [c for c in UNIFORM if "fps" not in c])
def test_count_is_the_length_of_the_sample(processor: Qwen3OmniProcessor, case: str) -> None:
    row, media = make_row(*UNIFORM[case])
    sample = processor.encode(row, media)
    infos = [info(m) for m in media]
    assert processor.count(row, infos) == len(sample.input_ids)
    counted = processor.measure(row, infos)
    assert counted.total == len(sample.input_ids)
    assert counted.media == sum((sample.input_ids == id).sum() for id in processor._kinds.values())
    assert counted.prompt == int((sample.labels != IGNORE).nonzero()[0])


def test_count_applies_the_limits(tiny_checkpoint: Path) -> None:
    def count(limits: MediaLimits, kind: MediaKind = "video", **values: Any) -> int:
        row, _ = make_row(("user", [Media(kind), "?"]), ANSWER)
        return Qwen3OmniProcessor(str(tiny_checkpoint), limits).measure(row, [MediaInfo(kind, **values)]).media

    long = {"width": 640, "height": 480, "frames": 900, "duration": 30.0, "has_audio": True, "audio_samples": 480_000}
    tokens = 4 * 3 * 4  # 8 frames of 96 × 128 pixels, as 4 time steps of 3 × 4 tokens
    assert count(LIMITS, **long) == tokens + 390
    assert count(MediaLimits(8, 4.0, 1024, 128 * 128, False), **long) == tokens
    assert count(MediaLimits(8, 4.0, 1024, 128 * 128, True, 2.0), **long) == tokens + 26
    assert count(MediaLimits(8, 4.0, 1024, 128 * 128, True, 2.0), "audio", audio_samples=480_000) == 26
    assert count(LIMITS, "image", width=640, height=480, frames=1) == 12
    with pytest.raises(UserError, match=r"rows.jsonl:1: row 'row': .*640"):
        count(LIMITS, "image", width=640, height=1, frames=1)


class TestCaseA4:
    """A clip with sound and one without, side by side."""

    WITH = Media("video", pixels(8, 64, 64), np.arange(8) / 2, 0.5, sound(64_000))
    SILENT = Media("video", pixels(8, 64, 64), np.arange(8) / 2, 0.5)

    def samples(self, processor: Qwen3OmniProcessor) -> tuple[Sample, Sample]:
        one, media_one = make_row(("user", [self.WITH, "What?"]), ANSWER, id="AV")
        two, media_two = make_row(("user", [self.SILENT, "What?"]), ANSWER, id="SILENT")
        return processor.encode(one, media_one), processor.encode(two, media_two)

    def test_placeholders(self, processor: Qwen3OmniProcessor) -> None:
        heard, silent = self.samples(processor)
        audio_id, video_id = processor._kinds["audio"], processor._kinds["video"]
        assert heard.audio[0].shape == (128, 400)
        assert (heard.input_ids == audio_id).sum() == 52
        assert (silent.input_ids == audio_id).sum() == 0
        assert (silent.input_ids == video_id).sum() == (heard.input_ids == video_id).sum() == 16
        assert silent.audio == []

    @pytest.mark.parametrize("order", [[0, 1], [1, 0], [0], [1]])
    def test_rows_do_not_depend_on_the_batch(self, processor: Qwen3OmniProcessor, model: Any, order: list[int]) -> None:
        samples = self.samples(processor)
        logits = forward(model, collate([samples[i] for i in order], processor.pad_id))
        for i, row in zip(order, logits, strict=True):
            alone = forward(model, collate([samples[i]], processor.pad_id))[0]
            torch.testing.assert_close(row[: len(alone)], alone, rtol=1e-4, atol=1e-5)

    def test_two_clips_in_one_row(self, processor: Qwen3OmniProcessor, model: Any) -> None:
        row, media = make_row(("user", [self.SILENT, self.WITH, self.SILENT, "Which?"]), ANSWER)
        sample = processor.encode(row, media)
        text = processor.tokenizer.decode(sample.input_ids)
        assert text.count("<|vision_start|><|video_pad|>") == 2
        assert text.count("<|vision_start|><|audio_start|><|video_pad|>") == 1
        assert text.count("<|audio_end|><|vision_end|>") == 1
        assert forward(model, collate([sample], processor.pad_id)).isfinite().all()


def forward(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    batch = {k: v for k, v in batch.items() if k != "labels"}
    with torch.no_grad():
        return model(**batch, use_cache=False).logits


@pytest.mark.parametrize("case", ["text", "video", "video with sound", "image, video with sound, audio"])
def test_logits_and_loss_of_upstream(processor: Qwen3OmniProcessor, model: Any, case: str) -> None:
    row, media = make_row(*UNIFORM[case])
    batch = collate([processor.encode(row, media)], processor.pad_id)
    expected = upstream(processor, model, row, media)
    del expected["position_ids"]  # the model works them out itself
    in_video = any(m.kind == "video" and m.audio is not None for m in media)
    labels = torch.nn.functional.pad(batch["labels"], (1, 0), value=IGNORE)[:, :-1]
    with torch.no_grad():
        theirs = model(**expected, labels=labels, use_audio_in_video=in_video, use_cache=False)
    model.rope_deltas = None
    logits = forward(model, batch)
    torch.testing.assert_close(logits, theirs.logits, rtol=1e-5, atol=1e-6)
    ours = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE)
    torch.testing.assert_close(ours, theirs.loss, rtol=1e-6, atol=1e-6)


def test_mixed_batch(processor: Qwen3OmniProcessor, model: Any) -> None:
    cases = ["text", "video", "audio", "image", "video with sound", "image, video with sound, audio"]
    samples = [processor.encode(*make_row(*UNIFORM[case])) for case in cases]
    logits = forward(model, collate(samples, processor.pad_id))
    for sample, row in zip(samples, logits, strict=True):
        alone = forward(model, collate([sample], processor.pad_id))[0]
        torch.testing.assert_close(row[: len(alone)], alone, rtol=1e-4, atol=1e-5)


def test_features_do_not_depend_on_padding(processor: Qwen3OmniProcessor) -> None:
    """Upstream pads sounds before the transform, which moves the last valid frame of the shorter one; ours does not."""
    short, long = sound(16_000), sound(40_000, 1)
    mel = processor._mel(short)
    padded = processor.hf.feature_extractor(
        [short, long], sampling_rate=16_000, padding=True, truncation=False, return_attention_mask=True
    )
    valid = torch.as_tensor(padded["input_features"][0])[:, torch.as_tensor(padded["attention_mask"][0]).bool()]
    assert mel.shape == valid.shape == (128, 100)
    torch.testing.assert_close(mel[:, :-1], valid[:, :-1], rtol=0, atol=1e-6)


def test_sound_too_short_to_transform(processor: Qwen3OmniProcessor) -> None:
    row, media = make_row(("user", [video(samples=200), "?"]), ANSWER)
    silent, silent_media = make_row(("user", [video(), "?"]), ANSWER)
    sample = processor.encode(row, media)
    assert torch.equal(sample.input_ids, processor.encode(silent, silent_media).input_ids)
    assert sample.audio == []
    assert processor.count(row, [info(media[0])]) == len(sample.input_ids)
    row, media = make_row(("user", [video(samples=201), "?"]), ANSWER)
    assert processor.encode(row, media).audio[0].shape == (128, 1)
    row, media = make_row(("user", [audio(200), "?"]), ANSWER)
    with pytest.raises(UserError, match=r"rows.jsonl:1: row 'row': the sound is too short"):
        processor.encode(row, media)


@pytest.mark.parametrize("token", ["<|video_pad|>", "<|im_end|>", "<|audio_start|>"])
def test_control_tokens_in_text(processor: Qwen3OmniProcessor, token: str) -> None:
    row, _ = make_row(("user", f"Write {token} twice."), ANSWER)
    with pytest.raises(UserError, match=r"rows.jsonl:1: row 'row': the text contains '<\|"):
        processor.encode(row, [])
    with pytest.raises(UserError, match="control token"):
        processor.count(row, [])


def with_template(checkpoint: Path, folder: Path, template: str) -> Qwen3OmniProcessor:
    for file in checkpoint.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text(template)
    return Qwen3OmniProcessor(str(folder), LIMITS)


def test_a_template_that_loses_or_moves_media(tiny_checkpoint: Path, tmp_path: Path) -> None:
    template = (tiny_checkpoint / "chat_template.jinja").read_text()
    row, media = make_row(("user", [audio(), image(), "?"]), ANSWER)
    without_audio = with_template(tiny_checkpoint, tmp_path, template.replace("part.type == 'audio'", "false"))
    with pytest.raises(UserError, match=r"rows.jsonl:1: row 'row': the chat template does not write the row's media"):
        without_audio.encode(row, media)
    without_image = with_template(tiny_checkpoint, tmp_path, template.replace("part.type == 'image'", "false"))
    with pytest.raises(UserError, match=r"the chat template leaves out image '2'"):
        without_image.encode(row, media)


def test_a_checkpoint_of_another_model(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.checkpoint: .*none"):
        Qwen3OmniProcessor(str(tmp_path / "none"), LIMITS)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UserError, match="is a llama checkpoint"):
        Qwen3OmniProcessor(str(tmp_path), LIMITS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tokenizer.json", "lacks tokenizer.json or vocab.json; copy"),
        ("tokenizer_config.json", "lacks tokenizer_config.json; copy"),
        ("processor_config.json", "lacks processor_config.json or preprocessor_config.json; copy"),
        ("chat_template.jinja", "has no chat template; copy chat_template.jinja"),
    ],
)
def test_a_processor_that_lacks_a_file(name: str, message: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint, copy)
    (copy / name).unlink()
    with pytest.raises(UserError, match=f"model.checkpoint: {copy} {message}"):
        Qwen3OmniProcessor(str(copy), LIMITS)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "processor_config.json", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("text", ["{}", "[", "[1]", '{"image_token": "<|no_such|>"}'])
def test_a_processor_with_a_bad_file(name: str, text: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Whatever upstream says of it: one message that names the checkpoint, or a processor that works."""
    copy = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint, copy)
    (copy / name).write_text(text)
    try:
        processor = Qwen3OmniProcessor(str(copy), LIMITS)
    except UserError as error:
        assert f"model.checkpoint: {copy}" in str(error)
    else:
        row, media = make_row(*UNIFORM["image, video with sound, audio"])
        assert len(processor.encode(row, media).input_ids) > 20


def test_saved_processor_is_the_same(processor: Qwen3OmniProcessor, tiny_checkpoint: Path, tmp_path: Path) -> None:
    processor.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes((tiny_checkpoint / "config.json").read_bytes())
    row, media = make_row(*UNIFORM["image, video with sound, audio"])
    one, two = processor.encode(row, media), Qwen3OmniProcessor(str(tmp_path), LIMITS).encode(row, media)
    assert torch.equal(one.input_ids, two.input_ids)
    assert torch.equal(one.media["pixel_values_videos"], two.media["pixel_values_videos"])


def test_names(processor: Qwen3OmniProcessor) -> None:
    assert processor.factor == 32
    assert processor.tokenizer.decode([processor.pad_id]) == "<|endoftext|>"
    assert processor.tokenizer.decode(processor.end_of_turn_ids) == "<|im_end|>"


def test_speed(processor: Qwen3OmniProcessor) -> None:
    row, media = make_row(("user", [AV, "What is shown?"]), ANSWER)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        processor.encode(row, media)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.010
