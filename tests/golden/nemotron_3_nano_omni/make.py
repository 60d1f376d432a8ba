"""Writes `processor.json`: what the processor of transformers 5.24 or later makes of the cases of
`tests/avlm/models/nemotron_3_nano_omni/cases.py`, with pictures that it need not resize.

The project itself is bound to an older transformers, so give it a newer one for this run only:

    uv pip install --target NEWER --no-deps "transformers>=5.24" "tokenizers>=0.23.1,<0.24"
    PYTHONPATH=NEWER:. python tests/golden/nemotron_3_nano_omni/make.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.video_utils import VideoMetadata

from avlm.data.types import Text
from avlm.models.nemotron_3_nano_omni.pictures import MEAN, STD
from tests.avlm.models.nemotron_3_nano_omni.cases import CASES, digest, make_row
from tests.avlm.models.nemotron_3_nano_omni.checkpoint import write_checkpoint


def upstream(tokenizer: Any, case: str) -> dict[str, Any]:
    """Ids, and shapes and digests of pictures and spectrograms."""
    row, media = make_row(*CASES[case])
    messages = []
    for turn in row.turns:
        items = [{"type": "text", "text": p.text} if isinstance(p, Text) else {"type": p.kind} for p in turn.parts]
        text_only = all(item["type"] == "text" for item in items)
        content = "".join(item["text"] for item in items) if text_only else items
        messages.append({"role": turn.role, "content": content})
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, enable_thinking=False, truncate_history_thinking=False
    )
    images, videos, sounds = ([m for m in media if m.kind == kind] for kind in ("image", "video", "audio"))
    given: dict[str, Any] = {}
    target = 1024
    if videos:
        (clip,) = videos
        target = clip.frames.shape[1] * clip.frames.shape[2] // 256
        numbers = [round(seconds * 25) for seconds in clip.times]
        given["videos"] = [torch.from_numpy(clip.frames).permute(0, 3, 1, 2)]
        metadata = VideoMetadata(total_num_frames=len(numbers), fps=25.0, frames_indices=numbers)
        given["videos_kwargs"] = {"video_metadata": [metadata], "do_sample_frames": False}
        if clip.audio is not None:  # as vLLM does with use_audio_in_video
            text = text.replace("<video>", "<video><so_embedding>")
            sounds = [clip, *sounds]
    if images:
        given["images"] = [torch.from_numpy(m.frames[0]).permute(2, 0, 1) for m in images]
    if sounds:
        given["audio"] = [m.audio for m in sounds]
    processor = transformers.NemotronH_Omni_Reasoning_V3Processor(
        image_processor=transformers.NemotronH_Omni_Reasoning_V3ImageProcessor(
            image_mean=MEAN, image_std=STD, min_num_patches=1
        ),
        video_processor=transformers.NemotronH_Omni_Reasoning_V3VideoProcessor(
            norm_mean=MEAN, norm_std=STD, video_target_num_patches=target
        ),
        tokenizer=tokenizer,
        feature_extractor=transformers.ParakeetFeatureExtractor(feature_size=128, sampling_rate=16_000),
    )
    out = processor(text=text, **given)
    pictures = []
    if images:
        done = 0
        patches = torch.as_tensor(out["pixel_values"])
        for rows, columns in torch.as_tensor(out["image_grid_hw"]).tolist():
            part = patches[done : done + rows * columns].view(rows, columns, 3, 16, 16)
            pictures.append(part.permute(2, 0, 3, 1, 4).reshape(1, 3, rows * 16, columns * 16))
            done += rows * columns
    if videos:
        patches = torch.as_tensor(out["pixel_values_videos"])[0]
        pictures.append(patches.reshape(-1, 3, *patches.shape[-2:])[: len(videos[0].frames)])
    spectrograms = []
    for number, sound in enumerate(sounds):
        frames = 1 + len(sound.audio) // 160
        spectrogram = out["input_features"][number][:frames]
        spectrograms.append({"valid": int(out["input_features_mask"][number].sum()), **digest(spectrogram)})
    return {
        "input_ids": [int(i) for i in out["input_ids"][0]],
        "pictures": [digest(picture) for picture in pictures],
        "sounds": spectrograms,
    }


def main() -> None:
    """Write the file next to this one."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder))
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    cases = {case: upstream(tokenizer, case) for case in CASES}
    file = Path(__file__).with_name("processor.json")
    lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(value)}" for case, value in cases.items())
    file.write_text(f'{{"transformers": "{transformers.__version__}", "cases": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
