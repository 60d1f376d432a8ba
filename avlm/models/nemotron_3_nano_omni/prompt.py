"""How Nemotron-3-Nano-Omni writes media into text.

A turn is one text with a marker for each file, as the checkpoint's chat template makes it of a list of items: images
first, then videos, then sounds, then the text. (NeMo-RL builds the same text, `DynamicResolutionProcessor.
conversation_preprocessor`, for templates that do not.) A marker then becomes

    <image>         <img> placeholders </img>
    <video>         Frame 1 sampled at 0.00 seconds and frame 2 sampled at 0.50 seconds: <img> placeholders </img>
                    (newline) Frame 3 sampled at … : <img> placeholders </img> …
    <so_embedding>  <so_start> placeholders <so_end>

where the placeholder of pictures is the token of `<image>`, in videos too, and that of sounds the token of
`<so_embedding>`. `<video>` is no token, only text that stands for a clip until it is replaced. Sources: `processing.py`
of the published checkpoint, now `models/nemotron_h_omni/processing_nemotron_h_omni.py` of transformers 5.24; vLLM
`transformers_utils/processors/nano_nemotron_vl.py`.

A clip's own sound track follows its last frame at once, as one sound: the form that vLLM
(`models/nano_nemotron_vl.py`, `use_audio_in_video`) and TensorRT-LLM serve. The sound is not interleaved with the
frames; their times are in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avlm.data.types import MediaKind

MARKERS: Mapping[MediaKind, str] = {"image": "<image>", "video": "<video>", "audio": "<so_embedding>"}
"""Text that stands for a file."""
PICTURE_START, PICTURE_END = "<img>", "</img>"
SOUND_START, SOUND_END = "<so_start>", "<so_end>"
THINK_START, THINK_END = "<think>", "</think>"
END_OF_TURN = "<|im_end|>"

_KINDS: Mapping[str, MediaKind] = {marker: kind for kind, marker in MARKERS.items()}
_MARKER = re.compile("|".join(map(re.escape, _KINDS)))


def joined(items: Sequence[Mapping[str, Any]]) -> str:
    """One text of a turn's items (`avlm.data.chat.ChatTemplate`), media first; several images are numbered."""
    text = "".join(item["text"] for item in items if item["type"] == "text")
    images, videos, sounds = (sum(item["type"] == kind for item in items) for kind in MARKERS)
    if not images + videos + sounds:
        return text
    image, video, sound = MARKERS.values()
    numbered = " ".join(f"<image {number}>{image}" for number in range(1, images + 1)) if images > 1 else image
    lines = [numbered] * (images > 0) + [video] * videos + [sound] * sounds
    return "\n".join([*lines, text.lstrip("\n")])


def split(text: str) -> Iterator[tuple[str, MediaKind | None]]:
    """(text, kind of the file whose marker follows it), in order; None behind the last text."""
    done = 0
    for found in _MARKER.finditer(text):
        yield text[done : found.start()], _KINDS[found.group()]
        done = found.end()
    yield text[done:], None


def frame_labels(times: Sequence[float], frames_per_patch: int) -> list[str]:
    """Text before each temporal patch of a clip whose frames are shown at `times` seconds.

    The times are those at which the frames are really shown. The published processor computes them as frame number ×
    (1000 // frame rate) milliseconds, which is the same for 25 frames per second and falls short for others (1 % at
    30, 4 % at 60); NVIDIA's training data, to go by its public Megatron code, has the real times.
    """
    labels = []
    for first in range(0, len(times), frames_per_patch):
        patch = enumerate(times[first : first + frames_per_patch], first + 1)
        frames = " and ".join(f"frame {number} sampled at {seconds:.2f} seconds" for number, seconds in patch)
        labels.append(("\n" if first else "") + frames.capitalize() + ": ")
    return labels
