"""Whether the processor that a checkpoint brings as Python code makes the same inputs as ours.

The pictures have sizes that neither resizes, and the clip 25 frames per second, for which both write the same times.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from avlm.data.types import Media, MediaRef, Row, Sample, Text, Turn
from avlm.errors import UserError
from avlm.models.nemotron_3_nano_omni.pictures import pictures
from avlm.models.nemotron_3_nano_omni.prompt import MARKERS

if TYPE_CHECKING:
    from avlm.models.nemotron_3_nano_omni.processing import Nemotron3NanoOmniProcessor

SIDE, FRAMES, STEP, RATE = 512, 4, 13, 25
"""A picture of SIDE × SIDE pixels is 1,024 patches, which the published sizes leave as it is."""


def differences(processor: Nemotron3NanoOmniProcessor) -> list[str]:
    """See `Nemotron3NanoOmniProcessor.agrees_with_checkpoint`."""
    from transformers import AutoProcessor

    try:
        theirs = AutoProcessor.from_pretrained(
            processor.checkpoint, revision=processor.revision, trust_remote_code=True
        )
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"{processor.checkpoint}: its own processor cannot be loaded: {error}") from error
    found: list[str] = []
    for name, media in _cases().items():
        found += [f"{name}: {problem}" for problem in _compare(processor, theirs, media)]
    return found


def _cases() -> dict[str, list[Media]]:
    random = np.random.RandomState(0)

    def frames(count: int) -> np.ndarray:
        return random.randint(0, 256, (count, SIDE, SIDE, 3)).astype(np.uint8)

    def sound(samples: int) -> np.ndarray:
        return random.randn(samples).astype(np.float32) * 0.1

    clip = Media("video", frames(FRAMES), np.arange(FRAMES) * STEP / RATE, STEP / RATE)
    return {
        "text": [],
        "image": [Media("image", frames(1), np.zeros(1))],
        "video": [clip],
        "sound": [Media("audio", audio=sound(30_001))],
        "sound of a whole number of tokens": [Media("audio", audio=sound(12_800))],
        "video and sound": [clip, Media("audio", audio=sound(30_001))],
    }


def _compare(ours: Nemotron3NanoOmniProcessor, theirs: Any, media: list[Media]) -> list[str]:
    from transformers.video_utils import VideoMetadata

    refs = tuple(MediaRef(m.kind, Path("file"), "file") for m in media)
    row = Row("case", (Turn("user", (*refs, Text("What?"))), Turn("assistant", (Text("Red."),))), "agreement", 1)
    sample = ours.encode(row, media)
    content = "".join(f"{MARKERS[ref.kind]}\n" for ref in refs) + "What?"
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "Red."}]
    given: dict[str, Any] = {"text": ours.tokenizer.apply_chat_template(messages, tokenize=False)}
    for item in media:
        if item.kind == "audio":
            given["audio"] = [item.audio]
            continue
        assert item.frames is not None
        shown = [_image(frame) for frame in item.frames]
        given["images" if item.kind == "image" else "videos"] = shown
        if item.kind == "video":
            numbers = [STEP * index for index in range(len(shown))]
            metadata = VideoMetadata(total_num_frames=len(numbers), fps=float(RATE), frames_indices=numbers)
            given["videos_kwargs"] = {"video_metadata": metadata}
    return _differences(sample, dict(theirs(return_tensors="pt", **given)))


def _image(frame: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(frame)


def _differences(sample: Sample, out: dict[str, Any]) -> list[str]:
    problems = []
    ids, expected = sample.input_ids.tolist(), [int(i) for i in out["input_ids"][0]]
    if ids != expected:
        shorter = min(len(ids), len(expected))
        at = next((i for i in range(shorter) if ids[i] != expected[i]), shorter)
        problems.append(f"{len(ids)} token ids, theirs are {len(expected)}; the first other one is number {at}")
    if sample.media:
        import torch

        ((is_clip, picture),) = pictures(**sample.media)
        theirs = torch.as_tensor(out["pixel_values_videos" if is_clip else "pixel_values"]).float()
        if picture.shape != theirs.shape:
            problems.append(f"pixels {tuple(picture.shape)}, theirs are {tuple(theirs.shape)}")
        elif (difference := float((picture - theirs).abs().max())) > 1e-4:
            problems.append(f"pixels differ by up to {difference:.2g}")
    return problems
