from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation
from PIL import Image

from avlm.data.media import MediaError, probe, read_media
from avlm.data.sampling import picks
from avlm.data.types import Media, MediaKind, MediaLimits, MediaRef
from avlm.errors import UserError
from tests.avlm.data import clips
from tests.avlm.data.clips import corners, greys, level, limits, pitch, quadrants, ref, shown, tone, write

RED, GREEN, BLUE, WHITE = clips.QUADRANTS


def read(path: Path, limit: MediaLimits | None = None, kind: MediaKind = "video", factor: int = 16) -> Media:
    return read_media(ref(path, kind), limit or limits(), factor)


def picture(media: Media) -> np.ndarray:
    assert media.frames is not None
    return media.frames


def sound(media: Media) -> np.ndarray:
    assert media.audio is not None
    assert media.audio.dtype == np.float32 and media.audio.ndim == 1
    return media.audio


# ---- picture


@pytest.mark.parametrize(
    ("degrees", "hflip", "upright"),
    [
        (0, False, (RED, GREEN, BLUE, WHITE)),
        (90, False, (GREEN, WHITE, RED, BLUE)),
        (180, False, (WHITE, BLUE, GREEN, RED)),
        (-90, False, (BLUE, RED, WHITE, GREEN)),
        (0, True, (GREEN, RED, WHITE, BLUE)),
        (90, True, (WHITE, GREEN, BLUE, RED)),
    ],
)
def test_rotation_and_mirroring(tmp_path: Path, degrees: int, hflip: bool, upright: tuple) -> None:
    plain = write(tmp_path / "plain.mp4", np.stack([quadrants(240, 320)] * 10))
    path = clips.rotate(plain, tmp_path / "turned.mp4", degrees, hflip)
    frames = picture(read(path))
    size = (320, 240) if degrees % 180 else (240, 320)
    assert frames.shape == (10, *size, 3)
    assert np.abs(np.subtract(corners(frames[0]), upright)).max() <= 12
    info = probe(ref(path))
    assert (info.height, info.width) == size


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "libx264"),
        ("a.mkv", "libx264"),
        ("a.mov", "mjpeg"),
        ("a.webm", "libvpx-vp9"),
        ("a.avi", "mjpeg"),
        ("a.ts", "libx264"),
    ],
)
def test_containers_give_the_chosen_frames(tmp_path: Path, name: str, codec: str) -> None:
    frames = greys(30)
    path = write(tmp_path / name, frames, tone(3, 48_000), rate=48_000, codec=codec,
                 sound_codec="libopus" if name.endswith("webm") else "aac")  # fmt: skip
    with av.open(str(path)) as container:
        times = np.array([f.time for f in container.decode(video=0)])
    chosen = picks(times, 12)
    media = read(path, limits(fps=4.0))
    assert shown(picture(media)) == chosen
    assert media.times is not None
    assert media.times - media.times[0] == pytest.approx(times[chosen] - times[0], abs=0.002)
    assert media.seconds_per_frame == pytest.approx((times[-1] - times[0]) / 11, abs=0.001)
    assert pitch(sound(media)) == pytest.approx(440, abs=1)
    assert len(sound(media)) == pytest.approx(48_000, abs=1_000)
    assert media.problems == []
    info = probe(ref(path))
    assert (info.frames, info.has_audio, info.audio_samples) == (30, True, len(sound(media)))
    assert info.duration == pytest.approx(times[-1] - times[0] + 0.1, abs=0.002)
    assert info.fps == pytest.approx(30 / info.duration)


def test_resizing_has_little_error_and_no_bias(tmp_path: Path) -> None:
    """Against Pillow's antialiased bilinear filter on the same decoded frame."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((640, 480), Image.Resampling.BICUBIC))
    path = write(tmp_path / "a.mp4", np.stack([smooth] * 2))
    with av.open(str(path)) as container:
        accurate = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
        full = next(container.decode(video=0)).reformat(format="rgb24", interpolation=accurate).to_image()
    small = picture(read(path, limits(pixels=(1024, 160 * 128)), factor=32))[0]
    height, width = small.shape[:2]
    assert height % 32 == width % 32 == 0 and height * width <= 160 * 128
    wanted = np.asarray(full.resize((width, height), Image.Resampling.BILINEAR)).astype(float)
    assert abs((small - wanted).mean()) < 0.3
    assert np.abs(small - wanted).mean() < 1.5


def test_pixels_that_are_not_square(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", np.stack([quadrants(64, 32)] * 2), aspect=Fraction(2, 1))
    assert picture(read(path)).shape == (2, 64, 64, 3)
    info = probe(ref(path))
    assert (info.height, info.width) == (64, 64)


@pytest.mark.parametrize(("n", "fps", "wanted_fps", "expected"), [(10, 25, 2.0, [0, 9]), (1, 25, 2.0, [0, 0]),
                                                                   (3, 10, 10.0, [0, 1, 1, 2])])  # fmt: skip
def test_short_clips(tmp_path: Path, n: int, fps: int, wanted_fps: float, expected: list[int]) -> None:
    media = read(write(tmp_path / "a.mp4", greys(n), fps=fps), limits(fps=wanted_fps))
    assert shown(picture(media)) == expected
    assert media.seconds_per_frame > 0


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_variable_frame_rate_is_sampled_by_time(tmp_path: Path, name: str) -> None:
    """Half of the frames lie in the last tenth of the clip."""
    pts = [*range(0, 900, 100), *range(900, 1000, 10)]
    path = write(tmp_path / name, greys(len(pts)), pts=pts, unit=Fraction(1, 250), bframes=False)
    media = read(path, limits(max_frames=10, fps=10.0))
    assert media.times is not None
    assert media.times == pytest.approx(np.linspace(0, 990, 10) / 250, abs=0.21)  # half a gap
    assert shown(picture(media)) == picks(pts, 10)


def test_edit_list_hides_frames(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", greys(20), tone(1.5, 16_000), pts=list(range(-5, 15)), bframes=False,
                 options={"use_editlist": "1", "avoid_negative_ts": "disabled"})  # fmt: skip
    with av.open(str(path)) as container:
        assert sum(p.is_discard for p in container.demux(video=0)) == 5, "the file has no edit list: a useless test"
    media = read(path)
    assert shown(picture(media))[:1] == [5] and shown(picture(media))[-1] == 19
    assert media.times is not None and media.times[0] == 0.0
    assert media.problems == []
    info = probe(ref(path))
    assert (info.frames, info.declared_frames) == (15, 15)


def test_picture_that_starts_late(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mkv", greys(10), tone(2, 16_000), pts=list(range(5, 15)), sound_codec="flac")
    media = read(path)
    assert media.times is not None
    assert media.times[0] == pytest.approx(0.5) and media.times[-1] == pytest.approx(1.4)
    assert len(sound(media)) == pytest.approx(32_000, abs=50)


def test_sound_that_starts_late_is_kept_in_step_with_the_picture(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mkv", greys(20), tone(1, 16_000), sound_codec="flac", sound_start=8_000)
    media = read(path)
    assert media.times is not None and media.times[0] == 0.0
    assert len(sound(media)) == pytest.approx(24_000, abs=50)
    assert np.abs(sound(media)[:7_900]).max() == 0.0
    assert pitch(sound(media)[8_100:]) == pytest.approx(440, abs=1)
    assert probe(ref(path)).audio_samples == len(sound(media))


@pytest.mark.parametrize("name", ["a.mp4", "a.mov"])
def test_edit_list_hides_sound(tmp_path: Path, name: str) -> None:
    """The first half second is cut away, in the middle of an AAC frame."""
    wave = tone(2, 16_000)
    wave[:, :8_000] = tone(0.5, 16_000, 3000.0)
    path = write(tmp_path / name, greys(15), wave, sound_start=-8_000,
                 options={"use_editlist": "1", "avoid_negative_ts": "disabled"})  # fmt: skip
    samples = sound(read(path))
    assert len(samples) == 24_000 == probe(ref(path)).audio_samples
    assert pitch(samples[:1_600]) == pytest.approx(440, abs=10)
    assert np.abs(samples[-200:]).max() > 0.2, "filled up with silence"


# ---- damage


def truncated(tmp_path: Path) -> Path:
    """30 frames in the index at the front of the file, packets of 18."""
    whole = write(tmp_path / "whole.mov", greys(30, 48, 64), codec="mjpeg", options={"movflags": "faststart"})
    with av.open(str(whole)) as container:
        cut = [p.pos for p in container.demux(video=0) if p.size][18]
    path = tmp_path / "cut.mov"
    path.write_bytes(whole.read_bytes()[:cut])
    return path


@pytest.mark.timeout(30)
def test_truncated_file_gives_its_usable_frames(tmp_path: Path) -> None:
    path = truncated(tmp_path)
    media = read(path, limits(max_frames=8))
    assert shown(picture(media)) == [0, 2, 5, 7, 10, 12, 15, 17]
    assert len(media.problems) == 1 and "18 of 30 frames" in media.problems[0]
    info = probe(ref(path))
    assert (info.frames, info.declared_frames) == (18, 30)
    assert info.problems == tuple(media.problems)
    with pytest.raises(MediaError) as error:
        read_media(ref(path), limits(), 16, strict=True)
    assert str(path) in str(error.value) and "18 of 30" in str(error.value)


@pytest.mark.timeout(30)
def test_frame_that_cannot_be_decoded(tmp_path: Path) -> None:
    """Packets are there, but one is rubbish: frames are chosen among the others."""
    whole = write(tmp_path / "whole.mov", greys(12), codec="mjpeg")
    with av.open(str(whole)) as container:
        packet = [p for p in container.demux(video=0) if p.size][11]
        start, size = packet.pos, packet.size
    data = bytearray(whole.read_bytes())
    data[start : start + size] = bytes(size)
    path = tmp_path / "rubbish.mov"
    path.write_bytes(data)
    media = read(path, limits(max_frames=4))
    assert shown(picture(media)) == picks(range(11), 4)
    assert "11 of 12 frames" in media.problems[0]


def test_truncated_sound(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.m4a", None, tone(4, 16_000), options={"movflags": "faststart"})
    path = tmp_path / "cut.m4a"
    path.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * 0.6)])
    media = read(path, kind="audio")
    assert 16_000 < len(sound(media)) < 48_000
    assert "of 4.00 s of sound" in media.problems[0]
    assert probe(ref(path, "audio")).problems == tuple(media.problems)


@pytest.mark.parametrize("kind", ["video", "audio", "image"])
def test_unreadable_files(tmp_path: Path, kind: MediaKind) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("not a medium\n" * 100)
    half = write(tmp_path / "whole.mp4", greys(10)).read_bytes()
    (tmp_path / "half").write_bytes(half[: len(half) // 2])
    for name, reason in (("empty", "empty|image"), ("text", "cannot be read"), ("half", "cannot be read"),
                         ("gone", "no such file")):  # fmt: skip
        for function in (lambda r: read_media(r, limits(), 16), probe):
            with pytest.raises(MediaError, match=reason) as error:
                function(ref(tmp_path / name, kind))
            assert isinstance(error.value, UserError)
            assert str(error.value).startswith(str(tmp_path / name)) and "\n" not in str(error.value)


def test_wrong_kind(tmp_path: Path) -> None:
    write(tmp_path / "sound.wav", None, tone(1, 16_000), sound_codec="pcm_s16le")
    write(tmp_path / "silent.mp4", greys(4))
    with pytest.raises(MediaError, match="no picture"):
        read(tmp_path / "sound.wav")
    with pytest.raises(MediaError, match="no sound"):
        read(tmp_path / "silent.mp4", kind="audio")


def test_files_are_closed(tmp_path: Path) -> None:
    good = write(tmp_path / "a.mp4", greys(10), tone(1, 16_000))
    cut = truncated(tmp_path)
    (tmp_path / "bad.mp4").write_bytes(b"x" * 5000)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        read(good)
        probe(ref(good))
        read(cut)
        with pytest.raises(MediaError):
            read(tmp_path / "bad.mp4")
    assert len(os.listdir("/proc/self/fd")) == before


# ---- sound


def test_file_without_sound(tmp_path: Path) -> None:
    frames = greys(40, 48, 64)
    av_path = write(tmp_path / "av.mov", frames, tone(4, 16_000), codec="mjpeg", sound_codec="pcm_s16le")
    silent_path = write(tmp_path / "silent.mov", frames, codec="mjpeg")
    silent, with_sound = read(silent_path), read(av_path)
    assert silent.audio is None
    assert len(sound(with_sound)) == 64_000
    assert np.array_equal(picture(silent), picture(with_sound))
    assert not probe(ref(silent_path)).has_audio and probe(ref(silent_path)).audio_samples == 0
    assert probe(ref(av_path)).has_audio and probe(ref(av_path)).audio_samples == 64_000
    assert read(av_path, limits(sound=False)).audio is None


@pytest.mark.parametrize(
    ("name", "codec", "rate", "channels"),
    [
        ("a.wav", "pcm_s16le", 22_050, 2),
        ("a.wav", "pcm_s16le", 16_000, 1),
        ("a.flac", "flac", 44_100, 1),
        ("a.mp3", "libmp3lame", 44_100, 2),
        ("a.m4a", "aac", 48_000, 2),
        ("a.ogg", "libopus", 48_000, 1),
    ],
)
def test_sound_files(tmp_path: Path, name: str, codec: str, rate: int, channels: int) -> None:
    """Length, pitch and loudness: a mono downmix in the resampler would be sqrt(2) louder."""
    path = write(tmp_path / name, None, tone(2, rate, channels=channels), rate=rate, sound_codec=codec)
    samples = sound(read(path, kind="audio"))
    assert len(samples) == pytest.approx(32_000, abs=40)
    assert pitch(samples) == pytest.approx(440, abs=1)
    middle = samples[8_000:24_000]
    assert np.sqrt((middle**2).mean()) == pytest.approx(0.3 / np.sqrt(2), rel=0.06)
    info = probe(ref(path, "audio"))
    assert (info.kind, info.has_audio, info.audio_samples) == ("audio", True, len(samples))
    assert info.duration == pytest.approx(2, abs=0.01)


def test_exact_samples_of_lossless_sound(tmp_path: Path) -> None:
    wave = tone(1, 16_000, 1000.0)
    path = write(tmp_path / "a.wav", None, wave, sound_codec="pcm_s16le")
    assert sound(read(path, kind="audio")) == pytest.approx(wave[0], abs=2e-5)


def test_channels_are_averaged(tmp_path: Path) -> None:
    wave = tone(1, 16_000, channels=2)
    wave[1] = 0.0
    samples = sound(read(write(tmp_path / "a.wav", None, wave, sound_codec="pcm_s16le"), kind="audio"))
    assert samples == pytest.approx(wave[0] / 2, abs=1e-4)


def test_long_sound_is_cut_at_its_end_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", None, tone(3, 16_000), sound_codec="pcm_s16le")
    whole, cut = read(path, kind="audio"), read(path, limits(seconds=1.25), "audio")
    assert np.array_equal(sound(cut), sound(whole)[:20_000])
    assert (cut.cut_seconds, whole.cut_seconds) == (1.75, 0.0)
    assert cut.problems == []


def test_cover_art_is_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    write(tmp_path / "plain.mp3", None, tone(1, 44_100), rate=44_100, sound_codec="libmp3lame")
    Image.new("RGB", (32, 32), "red").save(tmp_path / "cover.png")
    with (
        av.open(str(path), "w") as new,
        av.open(str(tmp_path / "plain.mp3")) as old,
        av.open(str(tmp_path / "cover.png")) as cover,
    ):
        track = new.add_stream_from_template(old.streams.audio[0])
        image = new.add_stream_from_template(cover.streams.video[0])
        image.disposition = av.stream.Disposition.attached_pic
        for source, stream in ((cover, image), (old, track)):
            for packet in source.demux():
                if packet.size:
                    packet.stream = stream
                    new.mux(packet)
    with pytest.raises(MediaError, match="no picture"):
        read(path)
    assert len(sound(read(path, kind="audio"))) == pytest.approx(16_000, abs=40)


# ---- images


def test_image_upright_and_resized(tmp_path: Path) -> None:
    image = Image.fromarray(quadrants(64, 128))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it upright
    image.save(tmp_path / "a.jpg", exif=exif, quality=95, subsampling=0)
    media = read(tmp_path / "a.jpg", kind="image", factor=32)
    assert picture(media).shape == (1, 128, 64, 3) and media.audio is None
    assert np.abs(np.subtract(corners(picture(media)[0]), (BLUE, RED, WHITE, GREEN))).max() <= 12
    info = probe(ref(tmp_path / "a.jpg", "image"))
    assert (info.kind, info.height, info.width, info.frames) == ("image", 128, 64, 1)


def test_transparency_is_white(tmp_path: Path) -> None:
    Image.new("RGBA", (64, 64), (255, 0, 0, 0)).save(tmp_path / "a.png")
    assert picture(read(tmp_path / "a.png", kind="image")).min() == 255


def test_grey_image(tmp_path: Path) -> None:
    Image.new("L", (64, 64), 77).save(tmp_path / "a.png")
    assert np.unique(picture(read(tmp_path / "a.png", kind="image"))).tolist() == [77]


def test_image_that_is_a_line(tmp_path: Path) -> None:
    Image.new("L", (2010, 10)).save(tmp_path / "a.png")
    for function in (lambda r: read_media(r, limits(), 16), probe):
        with pytest.raises(MediaError, match="200 times"):
            function(ref(tmp_path / "a.png", "image"))


# ---- parts


def part(path: Path, start: float | None, end: float | None, limit: MediaLimits, kind: MediaKind = "video") -> Media:
    return read_media(replace(ref(path, kind), start=start, end=end), limit, 16)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.mov"])
def test_part_of_a_clip(tmp_path: Path, name: str) -> None:
    """Picture and sound are those of the whole clip, cut."""
    sound_codec = {"a.mkv": "flac", "a.mov": "pcm_s16le"}.get(name, "aac")
    rate = 44_100 if sound_codec == "flac" else 48_000
    wave = tone(6, rate) * np.linspace(0.2, 1.0, 6 * rate, dtype=np.float32)
    path = write(tmp_path / name, np.concatenate([greys(40), greys(20)]), wave, rate=rate, sound_codec=sound_codec)
    limit = limits(max_frames=128, fps=10.0)
    whole, cut = read(path, limit), part(path, 2.4, 4.4, limit)
    assert shown(picture(cut)) == [*range(24, 40), *range(4)]
    assert np.array_equal(picture(cut), picture(whole)[24:44])
    assert cut.times is not None
    assert cut.times == pytest.approx(np.arange(20) / 10, abs=0.022 if name == "a.ts" else 1e-3)  # 1024 samples early
    assert len(sound(cut)) == 32_000
    exact = sound_codec != "aac"
    assert np.abs(sound(cut) - sound(whole)[38_400:70_400]).max() <= (0 if exact else 2e-3)
    assert cut.problems == []
    info = probe(replace(ref(path), start=2.4, end=4.4), limit)
    assert (info.frames, info.audio_samples) == (20, 32_000)
    assert info.times == tuple(cut.times)


@pytest.mark.parametrize(
    ("name", "codec", "rate", "tolerance"),
    [("a.wav", "pcm_s16le", 22_050, 0), ("a.flac", "flac", 48_000, 0), ("a.mp3", "libmp3lame", 44_100, 1e-4),
     ("a.ogg", "libopus", 48_000, 1e-3), ("a.m4a", "aac", 44_100, 2e-3)],
)  # fmt: skip
def test_part_of_a_sound(tmp_path: Path, name: str, codec: str, rate: int, tolerance: float) -> None:
    wave = tone(5, rate, channels=2) * np.linspace(0.2, 1.0, 5 * rate, dtype=np.float32)
    path = write(tmp_path / name, None, wave, rate=rate, sound_codec=codec)
    whole = sound(read(path, kind="audio"))
    for start, end in ((2.2, 4.0), (0.3, 0.9), (3.1, None)):
        cut = sound(part(path, start, end, limits(), "audio"))
        stop = len(whole) if end is None else round(end * 16_000)
        expected = whole[round(start * 16_000) : stop]
        assert len(cut) == len(expected)
        assert np.abs(cut - expected).max() <= tolerance
    info = probe(replace(ref(path, "audio"), start=2.2, end=4.0))
    assert (info.audio_samples, info.duration) == (28_800, 1.8)
    short = part(path, 2.0, 4.0, limits(seconds=0.5), "audio")
    assert (len(sound(short)), short.cut_seconds) == (8_000, 1.5)


def test_part_with_silence_before_the_sound(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mkv", greys(40), tone(2, 16_000), sound_codec="flac", sound_start=32_000)
    samples = sound(part(path, 1.5, 2.5, limits()))
    assert len(samples) == 16_000
    assert np.abs(samples[:7_900]).max() == 0.0 and np.abs(samples[8_100:]).max() > 0.2
    assert np.abs(sound(part(path, 0.5, 1.5, limits()))).max() == 0.0


def test_sound_of_a_clip_is_taken_as_its_row_says(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", greys(10), tone(1, 16_000))
    silent = write(tmp_path / "b.mp4", greys(10))
    for wanted in (True, False):
        said = replace(ref(path), audio_in_video=wanted)
        media = read_media(said, limits(sound=not wanted), 16)
        assert (media.audio is not None) is wanted
        assert read_media(replace(ref(silent), audio_in_video=wanted), limits(), 16).audio is None


# ---- clips given as images


def images(tmp_path: Path, count: int, size: tuple[int, int] = (64, 48)) -> tuple[Path, ...]:
    paths = tuple(tmp_path / f"{i}.png" for i in range(count))
    for i, path in enumerate(paths):
        Image.new("RGB", size, (level(i),) * 3).save(path)
    return paths


@pytest.mark.parametrize(
    ("count", "most", "expected"),
    [(6, 128, [0, 1, 2, 3, 4, 5]), (5, 128, [0, 1, 2, 2, 3, 4]), (46, 128, list(range(46))), (6, 4, [0, 2, 3, 5]),
     (1, 4, [0, 0])],
)  # fmt: skip
def test_given_frames_are_not_sampled_again(tmp_path: Path, count: int, most: int, expected: list[int]) -> None:
    paths = images(tmp_path, count)
    times = tuple(i * 46.6 / 46 for i in range(count))
    given = MediaRef("video", paths[0], "0.png", frames=paths, times=times)
    media = read_media(given, limits(max_frames=most, fps=1.0), 16)
    assert shown(picture(media)) == expected
    assert media.times == pytest.approx([times[i] for i in expected], abs=1e-6) and media.audio is None
    assert media.seconds_per_frame == pytest.approx((times[-1] / (len(expected) - 1)) if count > 1 else 1.0)
    info = probe(given, limits(max_frames=most, fps=1.0))
    assert (info.height, info.width, info.frames, info.has_audio) == (48, 64, count, False)
    assert media.times is not None and info.times == tuple(media.times)


def test_given_frames_must_be_alike(tmp_path: Path) -> None:
    first, *_ = images(tmp_path, 1)
    Image.new("RGB", (32, 48)).save(tmp_path / "other.png")
    (tmp_path / "text.png").write_text("no image")
    for name, reason in (("other.png", "other.png: is 32 × 48 pixels, but 0.png is 64 × 48"),
                         ("text.png", "text.png: cannot be read as an image")):  # fmt: skip
        given = MediaRef("video", first, "0.png", frames=(first, tmp_path / name), times=(0.0, 1.0))
        for function in (lambda r: read_media(r, limits(), 16), probe):
            with pytest.raises(MediaError, match=reason):
                function(given)
