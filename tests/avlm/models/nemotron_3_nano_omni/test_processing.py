from __future__ import annotations

import json
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from avlm.data.media import probe, read_media
from avlm.data.types import IGNORE, Media, MediaInfo, MediaLimits, MediaRef, Role
from avlm.errors import UserError
from avlm.models.nemotron_3_nano_omni.pictures import flat, pictures
from avlm.models.nemotron_3_nano_omni.processing import Nemotron3NanoOmniProcessor
from avlm.models.nemotron_3_nano_omni.prompt import frame_labels, joined
from tests.avlm.data import clips
from tests.avlm.models.nemotron_3_nano_omni.cases import ANSWER, CASES, audio, digest, image, make_row, video
from tests.avlm.models.nemotron_3_nano_omni.checkpoint import PICTURE, SOUND, write_checkpoint

LIMITS = MediaLimits(max_frames=8, sample_fps=4.0, min_pixels=32 * 32, max_pixels=128 * 128, audio_in_video=True)
GOLDEN = Path(__file__).parents[3] / "golden/nemotron_3_nano_omni/processor.json"
PUBLISHED = "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("nemotron"))


@pytest.fixture(scope="module")
def processor(folder: Path) -> Nemotron3NanoOmniProcessor:
    return Nemotron3NanoOmniProcessor(str(folder), LIMITS)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    cases: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
    return cases


def info(media: Media) -> MediaInfo:
    """What `probe` says of a file that holds this."""
    samples = 0 if media.audio is None else len(media.audio)
    if media.frames is None or media.times is None:
        return MediaInfo("audio", has_audio=True, audio_samples=samples)
    frames, height, width = media.frames.shape[:3]
    if media.kind == "image":
        return MediaInfo("image", width, height, 1)
    step = 1 / LIMITS.sample_fps  # as long as `frame_count` needs to take all frames
    return MediaInfo(
        "video", width, height, frames, 0, 1 / step, frames * step, samples > 0, samples, tuple(media.times.tolist())
    )


def text_of(processor: Nemotron3NanoOmniProcessor, ids: torch.Tensor) -> str:
    return str(processor.tokenizer.decode(ids.tolist()))


@pytest.mark.parametrize("case", CASES)
def test_equal_to_upstream(processor: Nemotron3NanoOmniProcessor, golden: dict[str, Any], case: str) -> None:
    row, media = make_row(*CASES[case])
    sample, expected = processor.encode(row, media), golden[case]
    assert sample.input_ids.tolist() == expected["input_ids"]
    shown = [] if not sample.media else [picture for _, picture in pictures(**sample.media)]
    found = [digest(picture) for picture in shown] + [digest(mel.T) for mel in sample.audio]
    assert [f["shape"] for f in found] == [e["shape"] for e in expected["pictures"] + expected["sounds"]]
    for mine, theirs in zip(found, expected["pictures"] + expected["sounds"], strict=True):
        assert mine["size"] == pytest.approx(theirs["size"], abs=2e-5)
        assert mine["sum"] == pytest.approx(theirs["sum"], abs=0.02)
    for mel, theirs in zip(sample.audio, expected["sounds"], strict=True):
        assert mel.shape[1] == theirs["valid"] + 1 and not mel[:, -1].any()


@pytest.mark.parametrize("case", [case for case in CASES if case != "video of odd length"])
def test_measured_is_encoded(processor: Nemotron3NanoOmniProcessor, case: str) -> None:
    row, media = make_row(*CASES[case])
    limits = MediaLimits(12, 4.0, 32 * 32, 128 * 128, True)
    processor = Nemotron3NanoOmniProcessor(processor.checkpoint, limits)
    sample = processor.encode(row, media)
    infos = [info(m) for m in media]
    counted = processor.measure(row, infos)
    assert counted.total == processor.count(row, infos) == len(sample.input_ids)
    assert counted.media == int(torch.isin(sample.input_ids, torch.tensor([PICTURE, SOUND])).sum())
    assert counted.prompt == int((sample.labels != IGNORE).nonzero()[0])


@pytest.mark.parametrize("samples", [0, 300, 320, 12_800, 30_001])
@pytest.mark.parametrize("in_video", [True, False])
def test_measured_is_encoded_for_files(folder: Path, tmp_path: Path, samples: int, in_video: bool) -> None:
    """From real clips of uneven frame rate, with times over ten seconds."""
    path = tmp_path / "clip.mp4"
    sound = clips.tone(samples / 16_000, 16_000) if samples else None
    uneven = [503 * i + 37 * i % 211 for i in range(24)]
    clips.write(path, clips.greys(24, 64, 96), sound, pts=uneven, unit=Fraction(1, 1000))
    limits = MediaLimits(30, 2.0, 32 * 32, 64 * 64, in_video)
    processor = Nemotron3NanoOmniProcessor(str(folder), limits)
    row, _ = make_row(("user", [video(), "What?"]), ANSWER)
    ref = MediaRef("video", path, "clip.mp4")
    media, known = read_media(ref, limits, processor.factor), probe(ref, limits)
    assert media.times is not None and known.times == tuple(media.times.tolist()) and known.times[-1] > 10
    sample = processor.encode(row, [media])
    assert processor.measure(row, [known]).total == len(sample.input_ids)
    assert bool(sample.audio) == (in_video and known.audio_samples >= 320)


def test_measured_is_encoded_for_what_a_row_asks_of_a_clip(folder: Path, tmp_path: Path) -> None:
    """A part of it, with or without sound against the recipe, or a clip given as images."""
    path = tmp_path / "clip.mp4"
    clips.write(path, clips.greys(24, 64, 96), clips.tone(2.4, 16_000))
    stills = tuple(tmp_path / f"{index}.png" for index in range(6))
    for still in stills:
        Image.fromarray(clips.quadrants(64, 32)).save(still)
    refs = [
        MediaRef("video", path, "clip.mp4", start=0.7, end=1.8),
        MediaRef("video", path, "clip.mp4", start=1.1, audio_in_video=False),
        MediaRef("video", stills[0], "0.png", frames=stills, times=(0.0, 2.5, 5.0, 7.5, 10.0, 12.5)),
        MediaRef("audio", path, "clip.mp4", end=0.64),
    ]
    processor = Nemotron3NanoOmniProcessor(str(folder), LIMITS)
    for ref in refs:
        row, _ = make_row(("user", [audio() if ref.kind == "audio" else video(), "What?"]), ANSWER)
        media = read_media(ref, LIMITS, processor.factor)
        sample = processor.encode(row, [media])
        assert processor.measure(row, [probe(ref, LIMITS)]).total == len(sample.input_ids)
        assert bool(sample.audio) == (not ref.frames and ref.audio_in_video is not False)
        if ref.frames:
            assert "frame 2 sampled at 2.50 seconds" in text_of(processor, sample.input_ids)
            assert "frame 6 sampled at 12.50 seconds" in text_of(processor, sample.input_ids)


def test_probe_without_limits_is_not_enough(processor: Nemotron3NanoOmniProcessor) -> None:
    row, _ = make_row(("user", [video(), "What?"]), ANSWER)
    with pytest.raises(ValueError, match="probe with limits"):
        processor.measure(row, [MediaInfo("video", 64, 64, 8, 0, 4.0, 2.0)])


def test_sound_of_a_clip_follows_its_frames(processor: Nemotron3NanoOmniProcessor) -> None:
    row, media = make_row(("user", [video(samples=16_000), "What?"]), ANSWER)
    text = text_of(processor, processor.encode(row, media).input_ids)
    assert "frame 4 sampled at 1.56 seconds: <img><image><image><image><image></img><so_start><so_embedding>" in text
    assert text.endswith(
        "<so_embedding><so_end>\nWhat?<|im_end|>\n<|im_start|>assistant\n<think></think>red, then green<|im_end|>\n"
    )


def test_spectrograms_and_pictures_are_in_the_order_of_their_placeholders(
    processor: Nemotron3NanoOmniProcessor,
) -> None:
    """The template writes images, then videos, then sounds, whatever the row's order."""
    first, clip, picture = audio(8_000), video(samples=16_000), image(32, 32)
    row, media = make_row(("user", [first, clip, picture, "Which?"]), ANSWER)
    sample = processor.encode(row, media)
    assert [mel.shape[1] for mel in sample.audio] == [101, 51]
    assert sample.media["num_frames"].tolist() == [0, 4]
    assert sample.media["imgs_sizes"].tolist() == [[32, 32], [64, 64]]


def test_labels_are_the_answers_and_their_ends(processor: Nemotron3NanoOmniProcessor) -> None:
    row, media = make_row(("user", [image(), "What?"]), ("assistant", "Red."), ("user", "And?"), ANSWER)
    sample = processor.encode(row, media)
    supervised = sample.labels != IGNORE
    assert torch.equal(sample.labels[supervised], sample.input_ids[supervised])
    assert text_of(processor, sample.labels[supervised]) == "Red.<|im_end|>red, then green<|im_end|>"


def test_prompt_is_the_beginning_of_the_sample(processor: Nemotron3NanoOmniProcessor) -> None:
    row, media = make_row(("user", [video(samples=16_000), "What?"]), ANSWER)
    sample, prompt = processor.encode(row, media), processor.encode(row, media, with_answer=False)
    length = len(prompt.input_ids)
    assert sample.input_ids[:length].tolist() == prompt.input_ids.tolist()
    assert int((sample.labels != IGNORE).nonzero()[0]) == length
    assert (prompt.labels == IGNORE).all() and torch.equal(prompt.media["pixel_values"], sample.media["pixel_values"])


def test_positions_count_tokens(processor: Nemotron3NanoOmniProcessor) -> None:
    row, media = make_row(("user", [image(), "What?"]), ANSWER)
    sample = processor.encode(row, media)
    assert sample.position_ids.tolist() == list(range(len(sample.input_ids)))


REASONING: tuple[Role, str] = ("assistant", "<think>\nTwo squares.</think>\nred, then green")


def test_answers_with_reasoning_are_supervised_behind_the_opening_mark(processor: Nemotron3NanoOmniProcessor) -> None:
    row, media = make_row(("user", "Hi"), ("assistant", "<think>\na</think>Yes"), ("user", "What?"), REASONING)
    sample = processor.encode(row, media)
    supervised = text_of(processor, sample.labels[sample.labels != IGNORE])
    assert supervised == "a</think>Yes<|im_end|>Two squares.</think>\nred, then green<|im_end|>"
    prompt = text_of(processor, processor.encode(row, media, with_answer=False).input_ids)
    assert prompt.endswith(
        "<think>\na</think>Yes<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ((("user", "Hi"), ("assistant", "Yes"), ("user", "What?"), REASONING), "some of the row's answers have reaso"),
        ((("user", "Hi"), ("assistant", "<think>a</think>Yes")), "starts with '<think>' and a newline"),
        ((("user", "Hi"), ("assistant", "a</think>Yes")), "starts with '<think>' and a newline"),
        ((("user", "Hi <think>"), ANSWER), "a user turn contains '<think>'"),
        ((("user", "Hi <image>"), ANSWER), "the text contains '<image>'"),
        ((("user", "Hi <video>"), ANSWER), "the text contains '<video>'"),
        ((("user", "Hi"), ("assistant", "<|im_end|>")), "the text contains '<.im_end.>'"),
        ((("user", [audio(319), "What?"]), ANSWER), "the sound is too short: 319 samples"),
    ],
)
def test_rows_that_cannot_be_encoded(processor: Nemotron3NanoOmniProcessor, turns: Any, message: str) -> None:
    row, media = make_row(*turns)
    with pytest.raises(UserError, match=message) as caught:
        processor.encode(row, media)
    assert "rows.jsonl:1" in str(caught.value)


def test_clip_with_hardly_any_sound_gives_the_picture_only(processor: Nemotron3NanoOmniProcessor) -> None:
    row, media = make_row(("user", [video(samples=319), "What?"]), ANSWER)
    sample = processor.encode(row, media)
    assert not sample.audio and SOUND not in sample.input_ids


def test_template_that_writes_other_media(tmp_path: Path) -> None:
    row, media = make_row(("user", [image(), "What?"]), ANSWER)
    ends = "{%- if add_generation_prompt -%}{{- '<|im_start|>' -}}{%- endif -%}"
    for text, message in (("no marker", "leaves out image '1'"), ("<image> <image>", "more often than the row")):
        template = (
            "{%- for m in messages -%}{%- if m.role == 'user' -%}{{- '" + text + "' -}}{%- else -%}"
            "{{- '<|im_start|>' + m.content + '<|im_end|>' -}}{%- endif -%}{%- endfor -%}" + ends
        )
        write_checkpoint(tmp_path / message[:4], template=template)
        with pytest.raises(UserError, match=message):
            Nemotron3NanoOmniProcessor(str(tmp_path / message[:4]), LIMITS).encode(row, media)


def test_several_images_are_numbered() -> None:
    items = [{"type": "text", "text": "\nA"}, {"type": "audio"}, {"type": "image"}, {"type": "image"}]
    assert joined(items) == "<image 1><image> <image 2><image>\n<so_embedding>\nA"
    assert joined([{"type": "text", "text": "\nA"}]) == "\nA"


def test_labels_of_frames() -> None:
    assert frame_labels([0.0, 0.5, 9.999], 2) == [
        "Frame 1 sampled at 0.00 seconds and frame 2 sampled at 0.50 seconds: ",
        "\nFrame 3 sampled at 10.00 seconds: ",
    ]


def test_pictures_come_back() -> None:
    clip, still = video(4, (32, 64)).frames, image(64, 32).frames
    assert clip is not None and still is not None
    (is_clip, frames), (is_other, one) = pictures(**flat([clip, still], [True, False]), mean=[0.0] * 3, std=[1.0] * 3)
    assert is_clip and not is_other
    for found, made in ((frames, clip), (one, still)):
        assert np.array_equal((found * 255).round().byte().permute(0, 2, 3, 1).numpy(), made)
    broken = flat([clip], [True])
    broken["pixel_values"] = torch.cat([broken["pixel_values"]] * 2)
    with pytest.raises(RuntimeError, match="pixels"):
        list(pictures(**broken))


def test_goes_to_worker_processes(processor: Nemotron3NanoOmniProcessor) -> None:
    row, media = make_row(*CASES["video with sound"])
    copy = pickle.loads(pickle.dumps(processor))
    assert copy.encode(row, media).input_ids.tolist() == processor.encode(row, media).input_ids.tolist()


def test_saved_files_make_the_same_inputs(processor: Nemotron3NanoOmniProcessor, folder: Path, tmp_path: Path) -> None:
    processor.save_pretrained(tmp_path)
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    row, media = make_row(*CASES["video with sound"])
    again = Nemotron3NanoOmniProcessor(str(tmp_path), LIMITS)
    assert again.encode(row, media).input_ids.tolist() == processor.encode(row, media).input_ids.tolist()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "qwen3_omni_moe"}, "is a qwen3_omni_moe checkpoint, but model.family is nemotron"),
        ({"img_context_token_id": 17}, "gives '<image>' the id 18, config.json says 17"),
        ({"sound_context_token_id": 5}, "gives '<so_embedding>' the id 27, config.json says 5"),
    ],
)
def test_other_checkpoints(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    write_checkpoint(tmp_path, config)
    with pytest.raises(UserError, match=message):
        Nemotron3NanoOmniProcessor(str(tmp_path), LIMITS)


def test_missing_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no Nemotron-Omni configuration"):
        Nemotron3NanoOmniProcessor(str(tmp_path), LIMITS)
    write_checkpoint(tmp_path / "b", template=None)
    with pytest.raises(UserError, match="has no chat template"):
        Nemotron3NanoOmniProcessor(str(tmp_path / "b"), LIMITS)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/config.json").write_bytes((tmp_path / "b/config.json").read_bytes())
    with pytest.raises(UserError, match="has no tokenizer"):
        Nemotron3NanoOmniProcessor(str(tmp_path / "c"), LIMITS)


def test_published_checkpoint_agrees() -> None:
    """Where the published checkpoint is in the local cache: its own processor makes the same inputs."""
    try:
        processor = Nemotron3NanoOmniProcessor(PUBLISHED, LIMITS)
    except UserError as error:
        pytest.skip(f"needs the published checkpoint's files in the local Hugging Face cache: {error}")
    assert processor.agrees_with_checkpoint() == []


class Theirs:
    """Stands for the processor that a checkpoint brings; `broken` ones are not ours."""

    def __init__(self, ours: Nemotron3NanoOmniProcessor, broken: str = "") -> None:
        self.ours, self.broken = ours, broken

    def __call__(self, text: str, return_tensors: str, **given: Any) -> dict[str, Any]:
        kinds = {"images": "image", "videos": "video", "audio": "audio"}
        media = []
        for name, kind in kinds.items():
            if name not in given:
                continue
            if kind == "audio":
                media.append(Media("audio", audio=given[name][0]))
                continue
            metadata = given.get("videos_kwargs", {}).get("video_metadata")
            times = np.zeros(1) if metadata is None else np.array(metadata.frames_indices) / metadata.fps
            media.append(Media(kind, np.stack([np.asarray(p) for p in given[name]]), times))  # type: ignore[arg-type]
        row, media = make_row(("user", [*media, "What?"]), ("assistant", "Red."))
        sample = self.ours.encode(row, media)
        out: dict[str, Any] = {"input_ids": sample.input_ids[None, : -1 if self.broken == "ids" else None]}
        for is_clip, picture in pictures(**sample.media) if sample.media else ():
            name = "pixel_values_videos" if is_clip else "pixel_values"
            out[name] = picture[:, :, :-1] if self.broken == "size" else picture + 0.01 * (self.broken == "pixels")
        return out


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        ("", []),
        ("ids", ["text: ", "image: ", "video: ", "sound: ", "sound of a whole number", "video and sound: "]),
        ("size", ["image: pixels (1, 3, 512, 512), theirs", "video: pixels", "video and sound: pixels"]),
        ("pixels", ["image: pixels differ by up to 0.01", "video: pixels differ", "video and sound: pixels"]),
    ],
)
def test_agreement_names_what_differs(
    processor: Nemotron3NanoOmniProcessor, monkeypatch: pytest.MonkeyPatch, broken: str, found: list[str]
) -> None:
    from transformers import AutoProcessor

    monkeypatch.setattr(AutoProcessor, "from_pretrained", lambda *args, **kwargs: Theirs(processor, broken))
    problems = processor.agrees_with_checkpoint()
    assert len(problems) == len(found)
    assert all(problem.startswith(start) for problem, start in zip(problems, found, strict=True)), problems
