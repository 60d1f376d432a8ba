"""Image files -> frames: upright, on white where they are transparent, resized like the frames of a clip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from avlm.data.clip import Clip, MediaError, Picture, check_size, part_of
from avlm.data.sampling import frame_size, mean_distance
from avlm.data.types import Media, MediaInfo, MediaLimits, MediaRef

if TYPE_CHECKING:
    from PIL import Image


MICROSECOND = Fraction(1, 1_000_000)


def probe_image(ref: MediaRef) -> MediaInfo:
    """Size of an image, without decoding it. Raises `MediaError` for a file that is not one."""
    return _probe(ref.path)


def _probe(path: Path) -> MediaInfo:
    with _opened(path) as image:
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # Orientation: a quarter turn
        width, height = image.size[::-1] if turned else image.size
    check_size(path, height, width)
    return MediaInfo("image", width=width, height=height, frames=1)


def read_image(ref: MediaRef, limits: MediaLimits, factor: int) -> Media:
    """Read an image within `limits`. Raises `MediaError` for a file that is not one."""
    pixels = _pixels(ref.path)
    height, width = pixels.shape[:2]
    height, width = frame_size(height, width, factor, limits.min_pixels, limits.max_pixels)
    return Media("image", frames=resized(pixels, height, width)[None], times=np.zeros(1))


def clip_of_images(ref: MediaRef) -> Clip:
    """A clip that is given as images. The last one is shown as long as they are on average."""
    sizes = {(info.height, info.width): path for path in ref.frames for info in [_probe(path)]}
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        reason = (
            f"is {other[1]} × {other[0]} pixels, but {first.name} is {one[1]} × {one[0]}: frames of a clip are alike"
        )
        raise MediaError(second, reason)
    spread = ref.times[-1] - ref.times[0]
    distance = spread / (len(ref.times) - 1) if len(ref.times) > 1 else 1.0
    pts = np.round(np.array(ref.times) / float(MICROSECOND)).astype(np.int64)
    height, width = next(iter(sizes))
    picture = Picture(height, width, pts, MICROSECOND, ref.times[0], spread + distance, len(pts))
    return Clip(ref.path, picture, None)


def read_images(ref: MediaRef, limits: MediaLimits, factor: int) -> Media:
    """Read a clip that is given as images. Raises `MediaError` for files that are none or differ in size."""
    clip = clip_of_images(ref)
    assert clip.picture is not None
    part = part_of(clip, clip.picture, ref)
    chosen = part.choose(clip.picture.pts, limits)
    height, width = clip.picture.height, clip.picture.width
    height, width = frame_size(height, width, factor, limits.min_pixels, limits.max_pixels)
    made = {number: resized(_pixels(ref.frames[number]), height, width) for number in dict.fromkeys(chosen)}
    times = part.times(clip.picture, chosen)
    frames = np.stack([made[number] for number in chosen])
    return Media("video", frames=frames, times=times, seconds_per_frame=mean_distance(times, limits))


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
