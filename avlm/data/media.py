"""File -> `Media`: frames and sound of a clip, a sound file or an image.

Times in packets say which frames are taken before the first one is decoded; `avlm.data.decode` decodes what those
depend on. What a row takes, and how long it will be, follows from `avlm.data.clip` for reading and planning alike.
"""

from __future__ import annotations

from dataclasses import replace

from avlm.data.clip import Clip, MediaError, Part, info_of, part_of
from avlm.data.container import Demuxed, opened
from avlm.data.decode import Canvas, take, take_numbers, take_sparse
from avlm.data.image import clip_of_images, probe_image, read_image, read_images
from avlm.data.mp4 import Mp4, Unusual
from avlm.data.sampling import frame_size, mean_distance, takes_sound
from avlm.data.sound import read_sound
from avlm.data.types import Media, MediaInfo, MediaLimits, MediaRef

__all__ = ["MediaError", "probe", "read_media"]


def read_media(ref: MediaRef, limits: MediaLimits, factor: int, *, strict: bool = False) -> Media:
    """Read a file within `limits`; height and width become multiples of `factor`.

    Damage that leaves something usable (a truncated file) is listed in `Media.problems`; with `strict` it is an
    error. Raises `MediaError` for a file that is missing, unreadable or lacks the medium that `ref.kind` names.
    """
    if ref.kind == "image":
        media = read_image(ref, limits, factor)
    elif ref.frames:
        media = read_images(ref, limits, factor)
    else:
        media = _read_clip(ref, limits, factor)
    if strict and media.problems:
        raise MediaError(ref.path, "; ".join(media.problems))
    return media


def probe(ref: MediaRef, limits: MediaLimits | None = None) -> MediaInfo:
    """What a file holds, from its index or its packets, without decoding; with `limits` also which frames are taken.

    Raises `MediaError` as `read_media` does.
    """
    if ref.kind == "image":
        return probe_image(ref)
    clip, opened = clip_of(ref)
    return replace(info_of(clip, ref, limits), opened=opened)


def clip_of(ref: MediaRef) -> tuple[Clip, str]:
    """What is known of the whole clip or sound file, and why it had to be opened with FFmpeg (empty: it had not).

    Raises `MediaError` as `read_media` does.
    """
    if ref.frames:
        return clip_of_images(ref), ""
    try:
        with Mp4(ref) as file:
            return file.clip, ""
    except (Unusual, OSError) as reason:
        with opened(ref.path) as container:
            return Demuxed(container, ref).clip, str(reason)


def _read_clip(ref: MediaRef, limits: MediaLimits, factor: int) -> Media:
    fallback = ""
    try:
        with Mp4(ref) as file:
            media = _read(file, ref, limits, factor)
            if media is not None:
                return media
        fallback = "a frame is damaged or did not come out"
    except (Unusual, OSError):
        pass
    with opened(ref.path) as container:
        media = _read(Demuxed(container, ref), ref, limits, factor, fallback)
        assert media is not None
        return media


def _read(source: Demuxed | Mp4, ref: MediaRef, limits: MediaLimits, factor: int, fallback: str = "") -> Media | None:
    """Frames and sound. None when not all frames could be read from an `Mp4` in the sparing way.

    fallback: why that way is not to be tried.
    """
    media = Media(ref.kind, fallback=fallback)
    part = part_of(source.clip, source.clip.picture, ref)
    if ref.kind == "audio":
        media.problems += source.clip.problems() + part.problems
    elif not _read_frames(source, part, ref, limits, factor, media):
        return None
    if source.clip.sound is not None and takes_sound(ref, limits):
        media.audio = read_sound(source.sound, source.clip, part, limits.max_audio_seconds, media)
    return media


def _read_frames(
    source: Demuxed | Mp4, part: Part, ref: MediaRef, limits: MediaLimits, factor: int, media: Media
) -> bool:
    """The chosen frames of a clip, upright and resized. Returns whether they could be read (see `_read`)."""
    picture = source.clip.picture
    assert picture is not None
    height, width = frame_size(picture.height, picture.width, factor, limits.min_pixels, limits.max_pixels)
    canvas = Canvas(height, width, *source.orientation)
    known, chosen = len(picture.pts), part.choose(picture.pts, limits)
    if isinstance(source, Mp4):
        taken = take_sparse(source.track, picture.pts[chosen].tolist(), canvas)
        if taken.frames is None or taken.damaged:
            return False
    elif source.numbered:
        taken = take_numbers(source.track, chosen, canvas)
    else:
        taken = take(source.track, picture.pts[chosen].tolist(), canvas, sparse=not media.fallback)
    if taken.frames is None:  # a chosen frame cannot be decoded: choose among those that can
        assert isinstance(source, Demuxed)
        picture = source.decodable()
        part = part_of(source.clip, picture, ref)
        chosen = part.choose(picture.pts, limits)
        taken = take_numbers(source.track, chosen, canvas)
        if taken.frames is None:
            raise MediaError(ref.path, "its frames cannot be decoded")
    media.frames, media.fallback = taken.frames, media.fallback or taken.fallback
    media.times = part.times(picture, chosen)
    media.seconds_per_frame = mean_distance(media.times, limits)
    media.problems += source.clip.problems(len(picture.pts)) + part.problems
    if taken.damaged:
        media.problems.append(f"{taken.damaged} of the {len(chosen)} frames that are taken are damaged")
    if taken.rejected and len(picture.pts) == known:  # else they have been counted as missing
        media.problems.append(f"packets of the picture that cannot be decoded: {taken.rejected}")
    return True
