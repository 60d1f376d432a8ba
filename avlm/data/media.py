"""File -> `Media`: frames and sound of a clip, a sound file or an image.

Times in packets say which frames are taken before the first one is decoded; `avlm.data.decode` decodes what those
depend on. What a row takes, and how long it will be, follows from `avlm.data.clip` for reading and planning alike.
"""

from __future__ import annotations

from avlm.data.clip import Clip, MediaError, Part, info_of, part_of
from avlm.data.container import Demuxed, opened
from avlm.data.decode import Canvas, take, take_numbers
from avlm.data.image import clip_of_images, probe_image, read_image, read_images
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
        with opened(ref.path) as container:
            source = Demuxed(container, ref)
            media = Media(ref.kind)
            part = part_of(source.clip, source.clip.picture, ref)
            if ref.kind == "video":
                _read_frames(source, part, ref, limits, factor, media)
            else:
                media.problems += source.clip.problems() + part.problems
            if source.clip.sound is not None and takes_sound(ref, limits):
                media.audio = read_sound(source.sound, source.clip, part, limits.max_audio_seconds, media)
    if strict and media.problems:
        raise MediaError(ref.path, "; ".join(media.problems))
    return media


def probe(ref: MediaRef, limits: MediaLimits | None = None) -> MediaInfo:
    """What a file holds, from its packets, without decoding; with `limits` also which frames of a clip are taken.

    Raises `MediaError` as `read_media` does.
    """
    if ref.kind == "image":
        return probe_image(ref)
    if ref.frames:
        return info_of(clip_of_images(ref), ref, limits)
    return info_of(_clip(ref), ref, limits)


def _clip(ref: MediaRef) -> Clip:
    with opened(ref.path) as container:
        return Demuxed(container, ref).clip


def _read_frames(source: Demuxed, part: Part, ref: MediaRef, limits: MediaLimits, factor: int, media: Media) -> None:
    """The chosen frames of a clip, upright and resized."""
    picture = source.clip.picture
    assert picture is not None
    height, width = frame_size(picture.height, picture.width, factor, limits.min_pixels, limits.max_pixels)
    canvas = Canvas(height, width, *source.orientation)
    chosen = part.choose(picture.pts, limits)
    if source.numbered:
        taken = take_numbers(source.track, chosen, canvas)
    else:
        taken = take(source.track, picture.pts[chosen].tolist(), canvas)
    if taken.frames is None:  # a chosen frame cannot be decoded: choose among those that can
        picture = source.decodable()
        part = part_of(source.clip, picture, ref)
        chosen = part.choose(picture.pts, limits)
        taken = take_numbers(source.track, chosen, canvas)
    assert taken.frames is not None
    media.frames, media.fallback = taken.frames, taken.fallback
    media.times = part.times(picture, chosen)
    media.seconds_per_frame = mean_distance(media.times, limits)
    media.problems += source.clip.problems(len(picture.pts)) + part.problems
    if taken.damaged:
        media.problems.append(f"{taken.damaged} of the {len(chosen)} frames that are taken are damaged")
