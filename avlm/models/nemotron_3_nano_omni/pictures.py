"""Pictures of different sizes in one tensor, and back.

Frames and images of a batch differ in size, so their pixels lie one after the other: `pixel_values` [pixels, 3] uint8
(RGB, rows of the first frame, then of the next), `imgs_sizes` [pictures, 2] (height, width) and `num_frames`
[pictures], 0 for an image, else the frames of a clip. Pictures are in the order of their placeholders. Bytes rather
than normalised numbers keep a sample four times smaller on its way to the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""Mean and standard deviation of the channels, which the checkpoint's config repeats (those of OpenAI's CLIP)."""


def flat(frames: Sequence[np.ndarray], is_clip: Sequence[bool]) -> dict[str, torch.Tensor]:
    """`pixel_values`, `imgs_sizes`, `num_frames` of pictures [T, H, W, 3] uint8 (T = 1 for an image)."""
    import torch

    return {
        "pixel_values": torch.cat([torch.from_numpy(picture).reshape(-1, 3) for picture in frames]),
        "imgs_sizes": torch.tensor([picture.shape[1:3] for picture in frames]),
        "num_frames": torch.tensor([len(p) if clip else 0 for p, clip in zip(frames, is_clip, strict=True)]),
    }


def pictures(
    pixel_values: torch.Tensor,
    imgs_sizes: torch.Tensor,
    num_frames: torch.Tensor,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Iterator[tuple[bool, torch.Tensor]]:
    """(whether it is a clip, [frames or 1, 3, H, W] float32 normalised) for each picture of `flat`."""
    import torch

    middle, scale = (torch.tensor(value, device=pixel_values.device).view(1, 3, 1, 1) for value in (mean, std))
    done = 0
    for (height, width), frames in zip(imgs_sizes.tolist(), num_frames.tolist(), strict=True):
        count = max(frames, 1) * height * width
        pixels = pixel_values[done : done + count].view(max(frames, 1), height, width, 3).permute(0, 3, 1, 2)
        yield frames > 0, (pixels / 255.0 - middle) / scale
        done += count
    if done != len(pixel_values):
        raise RuntimeError(f"{len(pixel_values)} pixels for pictures that hold {done}")
