"""An image file -> one frame: upright, on white where it is transparent, resized like the frames of a clip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from avlm.data.clip import MediaError, check_size
from avlm.data.sampling import frame_size
from avlm.data.types import Media, MediaInfo, MediaLimits, MediaRef

if TYPE_CHECKING:
    from PIL import Image


def probe_image(ref: MediaRef) -> MediaInfo:
    """Size of an image, without decoding it. Raises `MediaError` for a file that is not one."""
    with _opened(ref.path) as image:
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # Orientation: a quarter turn
        width, height = image.size[::-1] if turned else image.size
    check_size(ref.path, height, width)
    return MediaInfo("image", width=width, height=height, frames=1)


def read_image(ref: MediaRef, limits: MediaLimits, factor: int) -> Media:
    """Read an image within `limits`. Raises `MediaError` for a file that is not one."""
    pixels = _pixels(ref.path)
    height, width = pixels.shape[:2]
    height, width = frame_size(height, width, factor, limits.min_pixels, limits.max_pixels)
    return Media("image", frames=resized(pixels, height, width)[None], times=np.zeros(1))


def _pixels(path: Path) -> np.ndarray:
    """[H, W, 3] uint8, upright, without transparency."""
    from PIL import Image, ImageOps

    with _opened(path) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            layer = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        pixels = np.ascontiguousarray(upright.convert("RGB"))
    height, width = pixels.shape[:2]
    check_size(path, height, width)
    return pixels


def resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """[height, width, 3] uint8 of [H, W, 3] uint8."""
    import av

    from avlm.data.decode import resizer

    return resizer()(av.VideoFrame.from_ndarray(pixels, format="rgb24"), height, width)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except FileNotFoundError:
        raise MediaError(path, "no such file") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise MediaError(path, f"cannot be read as an image ({error})") from None
