"""Rows and media as Qwen3-Omni sees them: ids, labels, 3-D positions, patches and mel spectrograms.

The checkpoint's own Hugging Face processor supplies tokenizer, chat template, patches and mel features. What it leaves
to each call is decided here per file: a clip with sound becomes

    <|vision_start|><|audio_start|> pictures and sound merged by time <|audio_end|><|vision_end|>

and a clip without sound the plain video form, side by side in one row if need be (upstream has one flag for a batch).
The text is tokenised with one placeholder for each file, and the placeholder is then replaced in the list of ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from avlm.data.chat import ChatTemplate
from avlm.data.labels import Piece
from avlm.data.processing import MediaShape, TokenCount, planned_shape, shape_of
from avlm.data.rows import where
from avlm.data.types import IGNORE, SAMPLE_RATE, Media, MediaInfo, MediaLimits, Row, Sample
from avlm.errors import UserError
from avlm.models.qwen3_omni_moe.positions import MediaSpan, Span, TextSpan, rope_positions, sound_tokens

if TYPE_CHECKING:
    import torch

NEEDED = (
    ("tokenizer.json", "vocab.json"),
    ("tokenizer_config.json",),
    ("processor_config.json", "preprocessor_config.json"),
)
"""Files of a checkpoint that make its processor; of each group one is enough."""


class Qwen3OmniProcessor:
    """`avlm.data.processing.Processor` of the family.

    checkpoint: Hugging Face directory or hub id. Raises `UserError` when it is missing or of another model.
    """

    def __init__(self, checkpoint: str, limits: MediaLimits, *, revision: str | None = None) -> None:
        self.limits = limits
        self.hf, config = _load(checkpoint, revision)
        self.tokenizer = self.hf.tokenizer
        video = self.hf.video_processor
        self._merge, self._patch, self._time = video.merge_size, video.patch_size, video.temporal_patch_size
        self.factor: int = self._patch * self._merge
        self._per_second = float(config.position_id_per_seconds)
        hf = self.hf
        self._kinds = {
            "image": self._id(hf.image_token),
            "video": self._id(hf.video_token),
            "audio": self._id(hf.audio_token),
        }
        self._kind_of = {id: kind for kind, id in self._kinds.items()}
        self._audio_start, self._audio_end = self._id(hf.audio_bos_token), self._id(hf.audio_eos_token)
        self.end_of_turn_ids: tuple[int, ...] = (self.tokenizer.eos_token_id,)
        self.pad_id: int = self.tokenizer.pad_token_id
        added = self.tokenizer.added_tokens_decoder.values()
        self._chat = ChatTemplate(
            hf.chat_template or self.tokenizer.chat_template,
            self.tokenizer.special_tokens_map,
            [self.tokenizer.eos_token],
            [token.content for token in added if token.special],
        )

    def encode(self, row: Row, media: Sequence[Media], *, with_answer: bool = True) -> Sample:
        """See `Processor.encode`."""
        import torch

        shapes = [shape_of(m) for m in media]
        spans: list[Span] = []
        ids: list[int] = []
        labels: list[int] = []
        for span, placeholder, supervised in self._spans(row, shapes, with_answer):
            spans.append(span)
            block = list(span.ids) if isinstance(span, TextSpan) else [placeholder] * len(span)
            ids += block
            labels += block if supervised else [IGNORE] * len(block)
        positions, is_sound = rope_positions(spans, self._per_second)
        input_ids = np.array(ids, np.int64)
        input_ids[is_sound] = self._kinds["audio"]
        tensors, sounds = self._features(row, media)
        return Sample(
            id=row.id,
            input_ids=torch.from_numpy(input_ids),
            labels=torch.tensor(labels, dtype=torch.int64),
            position_ids=torch.from_numpy(positions),
            media=tensors,
            audio=sounds,
        )

    def measure(self, row: Row, infos: Sequence[MediaInfo]) -> TokenCount:
        """See `Processor.measure`."""
        try:
            shapes = [planned_shape(info, self.limits, self.factor) for info in infos]
        except ValueError as error:
            raise UserError(f"{where(row)}: {error}") from error
        total = media = prompt = 0
        answered = False
        for span, _, supervised in self._spans(row, shapes, True):
            answered = answered or supervised
            total += len(span)
            media += len(span) if isinstance(span, MediaSpan) else 0
            prompt += 0 if answered else len(span)
        return TokenCount(total, media, prompt)

    def count(self, row: Row, infos: Sequence[MediaInfo]) -> int:
        """See `Processor.count`."""
        return self.measure(row, infos).total

    def save_pretrained(self, directory: str | Path) -> None:
        """See `Processor.save_pretrained`."""
        self.hf.save_pretrained(directory)

    def _spans(self, row: Row, shapes: Sequence[MediaShape], with_answer: bool) -> Iterator[tuple[Span, int, bool]]:
        """The row as (span, placeholder id, supervised), in order. Both `encode` and `count` are made from it."""
        if len(shapes) != len(row.media):
            raise ValueError(f"row {row.id!r} has {len(row.media)} media, got {len(shapes)}")
        pieces = self._chat.pieces(row) if with_answer else [Piece(self._chat.prompt(row), False)]
        waiting = list(zip(row.media, shapes, strict=True))[::-1]
        for piece in pieces:
            text: list[int] = []
            for id in self.tokenizer.encode(piece.text, add_special_tokens=False):
                kind = self._kind_of.get(id)
                if kind is None:
                    text.append(id)
                    continue
                ref, shape = waiting.pop() if waiting else (None, None)
                if ref is None or shape is None or ref.kind != kind:
                    raise UserError(f"{where(row)}: the chat template does not write the row's media in their order")
                span = self._media_span(row, shape)
                in_video = kind == "video" and span.sound > 0
                yield TextSpan((*text, self._audio_start) if in_video else tuple(text)), 0, piece.supervised
                yield span, id, False
                text = [self._audio_end] if in_video else []
            yield TextSpan(tuple(text)), 0, piece.supervised
        if waiting:
            raise UserError(
                f"{where(row)}: the chat template leaves out {waiting[-1][0].kind} {waiting[-1][0].name!r}; "
                "this checkpoint's template does not take it in that place"
            )

    def _media_span(self, row: Row, shape: MediaShape) -> MediaSpan:
        sound = sound_tokens(self._mel_frames(shape.audio_samples))
        if shape.kind == "audio":
            if not sound:
                raise UserError(f"{where(row)}: the sound is too short: {shape.audio_samples} samples at 16 kHz")
            return MediaSpan(sound=sound)
        rows, columns = shape.height // self.factor, shape.width // self.factor
        if shape.kind == "image":
            return MediaSpan((1, rows, columns))
        steps = -(-shape.frames // self._time)
        return MediaSpan((steps, rows, columns), self._time * shape.seconds_per_frame, sound)

    def _mel_frames(self, samples: int) -> int:
        """Frames of the spectrogram. Less sound than half a window cannot be transformed and counts as none."""
        extractor = self.hf.feature_extractor
        return 0 if samples <= extractor.n_fft // 2 else samples // extractor.hop_length

    def _features(self, row: Row, media: Sequence[Media]) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        """Model arguments of the row's pictures, concatenated, and one spectrogram for each sound."""
        import torch

        parts: dict[str, list[torch.Tensor]] = {}
        sounds: list[torch.Tensor] = []
        for item in media:
            for name, value in self._pictures(item).items():
                parts.setdefault(name, []).append(value)
            if item.audio is not None and self._mel_frames(len(item.audio)):
                sounds.append(self._mel(item.audio))
        return {name: torch.cat(values) for name, values in parts.items()}, sounds

    def _pictures(self, item: Media) -> dict[str, torch.Tensor]:
        import torch

        if item.frames is None:
            return {}
        frames = torch.from_numpy(item.frames).permute(0, 3, 1, 2)
        if item.kind == "image":
            out = self.hf.image_processor(images=[frames[0]], do_resize=False, return_tensors="pt")
            return {name: out[name] for name in ("pixel_values", "image_grid_thw")}
        out = self.hf.video_processor(videos=[frames], do_resize=False, do_sample_frames=False, return_tensors="pt")
        seconds = torch.tensor([self._time * item.seconds_per_frame], dtype=torch.float32)
        return {name: out[name] for name in ("pixel_values_videos", "video_grid_thw")} | {
            "video_second_per_grid": seconds
        }

    def _mel(self, audio: np.ndarray) -> torch.Tensor:
        """[mel_bins, F] float32, F = samples // hop length: no padding, whatever else is in the row or batch."""
        out = self.hf.feature_extractor(
            audio,
            sampling_rate=SAMPLE_RATE,
            padding="do_not_pad",
            truncation=False,
            return_attention_mask=False,
            return_tensors="pt",
        )
        return out["input_features"][0]

    def _id(self, token: str) -> int:
        found: int | None = self.tokenizer.convert_tokens_to_ids(token)
        if found is None or self.tokenizer.convert_ids_to_tokens(found) != token:
            raise UserError(f"model.checkpoint: {self.tokenizer.name_or_path}: its tokenizer has no token {token!r}")
        return found


def _load(checkpoint: str, revision: str | None) -> tuple[Any, Any]:
    """The Hugging Face processor and the thinker's config."""
    from transformers import AutoConfig, Qwen3OmniMoeProcessor

    from avlm.models.qwen3_omni_moe import FAMILY

    at, local = f"model.checkpoint: {checkpoint}", Path(checkpoint).is_dir()
    try:
        config = AutoConfig.from_pretrained(checkpoint, revision=revision)
        if config.model_type not in FAMILY.model_types:
            raise UserError(f"{at} is a {config.model_type} checkpoint, but model.family is {FAMILY.name}")
        for names in NEEDED:
            if local and not any((Path(checkpoint) / name).is_file() for name in names):
                raise UserError(
                    f"{at} lacks {' or '.join(names)}; copy the processor's files from the model it is from"
                )
        processor = Qwen3OmniMoeProcessor.from_pretrained(checkpoint, revision=revision)
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        where = "" if local else " (no such folder here, so it was looked for on the hub)"
        raise UserError(f"{at}{where} has no Qwen3-Omni configuration and processor: {reason}") from error
    if not (processor.chat_template or processor.tokenizer.chat_template):
        raise UserError(f"{at} has no chat template; copy chat_template.jinja from the model it is from")
    return processor, getattr(config, "thinker_config", config)
