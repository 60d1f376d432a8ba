"""Reads many damaged files and says what happened, as JSON. A process of its own, so that a crash is a result.

`python -m tests.avlm.data.fuzz FOLDER PART` with PART one of `PARTS`.
"""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av

from avlm.data.clip import MediaError
from avlm.data.media import probe, read_media
from avlm.data.types import MediaKind
from tests.avlm.data.clips import KINDS, limits, ref, tone, write, write_kind

LIMITS = limits(max_frames=6, fps=10.0)
CLIPS = ("h264.mp4", "h264_faststart.mp4", "h264_fragments.mp4", "hevc.mp4", "h264.mov", "h264.mkv", "h264.ts",
         "h264.flv", "h264.avi", "vp9.webm", "av1.mkv", "mpeg2.ts", "mpeg4.mp4", "mjpeg.avi", "mjpeg.mov")  # fmt: skip
SOUNDS = {"a.wav": "pcm_s16le", "a.flac": "flac", "a.mp3": "libmp3lame", "a.m4a": "aac", "a.ogg": "libopus"}
MEMORY = 4 << 30
"""Bytes that the process may map: a huge count must not become a huge allocation."""
Case = tuple[str, str, bytes]
"""What was done, the ending of the file's name, its content."""


def originals(folder: Path) -> dict[str, bytes]:
    """Small sound files of every kind, undamaged."""
    for kind in KINDS:
        if kind.name in CLIPS:
            write_kind(kind, folder / kind.name, frames=14)  # x265 breaks the heap at smaller sizes
    for name, codec in SOUNDS.items():
        write(folder / name, None, tone(0.6, 48_000), rate=48_000, sound_codec=codec)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def truncated(folder: Path, files: dict[str, bytes]) -> Iterator[Case]:
    """Cut where a packet starts, and in its middle."""
    for name in ("h264_faststart.mp4", "h264.mkv", "h264.ts", "h264.flv", "mjpeg.avi", "vp9.webm", "a.flac", "a.m4a"):
        with av.open(str(folder / name)) as container:
            places = sorted({p.pos + at for p in container.demux() if p.size and p.pos for at in (0, p.size // 2)})
        for place in places:
            yield f"{name} cut at {place}", Path(name).suffix, files[name][:place]


def flipped(folder: Path, files: dict[str, bytes]) -> Iterator[Case]:
    """Bits, runs of bytes and numbers changed at random places, more often in indexes."""
    rng = random.Random(0)
    for name, data in files.items():
        index = data.find(b"moov")
        for trial in range(24):
            changed = bytearray(data)
            first = index if index > 0 and trial % 2 else 0
            for _ in range(rng.choice((1, 2, 8, 100))):
                place = rng.randrange(first, len(data) - 8)
                match rng.randrange(3):
                    case 0:
                        changed[place] ^= 1 << rng.randrange(8)
                    case 1:
                        changed[place : place + 4] = rng.randbytes(4)
                    case _:
                        struct.pack_into(
                            ">I", changed, place, rng.choice((0, 1, 1 << 16, (1 << 31) - 1, (1 << 32) - 1))
                        )
            yield f"{name} changed {trial}", Path(name).suffix, bytes(changed)


def strange(folder: Path, files: dict[str, bytes]) -> Iterator[Case]:
    """Nothing, rubbish, wrong names, no frame rate, huge counts."""
    for ending in (".mp4", ".mkv", ".ts", ".wav", ".png", ""):
        yield f"empty{ending}", ending, b""
        yield f"zeros{ending}", ending, bytes(10_000)
        yield f"noise{ending}", ending, random.Random(1).randbytes(10_000)
    for name, data in files.items():
        for ending in (".mp4", ".mkv", ".avi", ".txt"):
            yield f"{name} as {ending}", ending, data
    mp4 = files["h264.mp4"]
    for box in (b"stts", b"ctts", b"stsz", b"stco", b"stsc", b"stss", b"elst", b"stsd", b"dref"):
        for at in (4, 8, 12, 16):
            for value in (0, 1 << 24, (1 << 31) - 1, (1 << 32) - 1):
                changed = bytearray(mp4)
                struct.pack_into(">I", changed, mp4.index(box) + 4 + at, value)
                yield f"{box.decode()} +{at} = {value}", ".mp4", bytes(changed)
    for box, at in ((b"mvhd", 16), (b"mdhd", 16), (b"stts", 16)):  # no time scale; frames that take no time
        changed = bytearray(mp4)
        struct.pack_into(">I", changed, mp4.index(box) + at, 0)
        yield f"{box.decode()} 0", ".mp4", bytes(changed)
    avi = files["mjpeg.avi"]
    for at, value in ((24, 0), (28, 0), (24, (1 << 32) - 1), (36, (1 << 32) - 1)):  # rate, scale, length
        changed = bytearray(avi)
        struct.pack_into("<I", changed, avi.index(b"vids") + at - 4, value)
        yield f"avi +{at} = {value}", ".avi", bytes(changed)


PARTS = {"truncated": truncated, "flipped": flipped, "strange": strange}


def main(folder: Path, part: str) -> dict[str, Any]:
    """Read all cases of a part, whole and in part, as clip and as sound."""
    av.logging.set_level(av.logging.PANIC)
    files = originals(folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    outcomes: Counter[str] = Counter()
    defects: list[str] = []
    slowest = (0.0, "")
    before = len(os.listdir("/proc/self/fd"))
    for what, ending, data in PARTS[part](folder, files):
        path = folder / f"case{ending}"
        path.write_bytes(data)
        kinds: tuple[MediaKind, ...] = ("image",) if ending == ".png" else ("video", "audio")
        for kind in kinds:
            whole = ref(path, kind)
            for number, what_of in enumerate((whole, replace(whole, start=0.21, end=0.4))):
                if number and kind == "image":
                    continue
                for function in (probe, read_media):
                    started = time.monotonic()
                    try:
                        result = probe(what_of, LIMITS) if function is probe else read_media(what_of, LIMITS, 16)
                        outcomes["damaged" if result.problems else "read"] += 1
                    except MediaError as error:
                        outcomes["refused"] += 1
                        if "\n" in str(error) or not str(error).startswith(str(path)):
                            defects.append(f"{what}: {error}")
                    except Exception:
                        defects.append(f"{what}: {kind}: {function.__name__}: {traceback.format_exc(limit=-3)}")
                    slowest = max(slowest, (time.monotonic() - started, what))
    return {
        "outcomes": outcomes,
        "defects": defects,
        "slowest": slowest,
        "left_open": len(os.listdir("/proc/self/fd")) - before,
        "megabytes": peak_megabytes(),
    }


def peak_megabytes() -> int:
    """Most memory of this process since it was started; `ru_maxrss` would count the one that started it too."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
