"""Rows and media as Nemotron-3-Nano-Omni sees them: ids, labels, pixels and mel spectrograms; positions are 1-D.

Text form and sources: `avlm.models.nemotron_3_nano_omni.prompt`. Of the checkpoint only its tokenizer and its JSON
files are read; the Python code that it brings is not run. The chat template is asked for answers without reasoning
(`enable_thinking` off: the prompt ends with an empty `<think></think>`, which is not supervised), or, for a row whose
answers start with `<think>`, for answers with reasoning; reasoning of earlier turns stays in.

Sizes of pictures are the recipe's (`video_min_pixels`, `video_max_pixels`; multiples of 32 pixels, one token for each
32 × 32 of an image or of two frames). Sound: one token for 80 ms, one spectrogram for each sound, 16 kHz.

What is checked against what: token ids, token counts, pixels and spectrograms of text, images, videos, sounds and
their mixtures against the processor of transformers 5.24 (`tests/golden/nemotron_3_nano_omni/`, made with a small
tokenizer with the published special tokens), and placeholders against the features that AutoModel's model class makes.
Not checked here, since the checkpoint is not at hand: its tokenizer and its chat template. `agrees_with_checkpoint`
does that where the checkpoint is present. Known differences: the processor of the checkpoint enlarges small images to
256 tokens and small frames to about 256 tokens a pair, and allows images 3,328 tokens; it prunes video tokens when
generating (`video_pruning_rate`), which neither NVIDIA's training code nor this does.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avlm.data.chat import ChatTemplate
from avlm.data.labels import Piece
from avlm.data.processing import MediaShape, TokenCount, planned_shape, shape_of
from avlm.data.rows import where
from avlm.data.types import IGNORE, SAMPLE_RATE, Media, MediaInfo, MediaKind, MediaLimits, Row, Sample, Text
from avlm.errors import UserError
from avlm.models.nemotron_3_nano_omni.pictures import flat
from avlm.models.nemotron_3_nano_omni.prompt import (
    END_OF_TURN,
    MARKERS,
    PICTURE_END,
    PICTURE_START,
    SOUND_END,
    SOUND_START,
    THINK_END,
    THINK_START,
    frame_labels,
    joined,
    split,
)

if TYPE_CHECKING:
    import numpy as np
    import torch

MODEL_TYPE = "NemotronH_Nano_Omni_Reasoning_V3"
HOP = 160
"""Samples between two frames of a spectrogram (10 ms), the default of `ParakeetFeatureExtractor`."""
_THINKS = (THINK_START, THINK_END)


@dataclass(frozen=True)
class _Block:
    """Consecutive tokens: text, or `count` placeholders of one file. media: index of the file that they begin."""

    ids: tuple[int, ...]
    supervised: bool = False
    placeholder: int | None = None
    count: int = 0
    picture: int | None = None
    sound: int | None = None

    def __len__(self) -> int:
        return self.count if self.placeholder is not None else len(self.ids)


class Nemotron3NanoOmniProcessor:
    """`avlm.data.processing.Processor` of the family.

    checkpoint: Hugging Face directory or hub id. Raises `UserError` when it is missing or of another model.
    """

    def __init__(self, checkpoint: str, limits: MediaLimits, *, revision: str | None = None) -> None:
        self.limits = limits
        self.checkpoint, self.revision = checkpoint, revision
        config, pictures = _load_configs(checkpoint, revision)
        self.tokenizer = _load_tokenizer(checkpoint, revision)
        ratio = config.get("downsample_ratio", 0.5)
        self.factor: int = int(pictures.get("patch_size", config.get("patch_size", 16))) * round(1 / ratio)
        self._frames_per_patch = int(config.get("video_temporal_patch_size", 2))
        self._sound = {"num_mel_bins": 128, "subsampling_factor": 8, **(config.get("sound_config") or {})}
        self._picture_id = self._placeholder("image", config.get("img_context_token_id"))
        self._sound_id = self._placeholder("audio", config.get("sound_context_token_id"))
        for mark in (PICTURE_START, PICTURE_END, SOUND_START, SOUND_END, END_OF_TURN):
            self._id(mark)
        self.end_of_turn_ids: tuple[int, ...] = (self._id(END_OF_TURN),)
        pad = self.tokenizer.pad_token_id
        self.pad_id: int = config.get("llm_config", {}).get("pad_token_id", 0) if pad is None else pad
        control = {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        control |= {*MARKERS.values(), PICTURE_START, PICTURE_END, SOUND_START, SOUND_END, END_OF_TURN}
        self._chats = {thinks: self._chat(thinks, sorted(control - set(_THINKS))) for thinks in (False, True)}

    def encode(self, row: Row, media: Sequence[Media], *, with_answer: bool = True) -> Sample:
        """See `Processor.encode`. The media arguments are described in `pictures`."""
        import torch

        ids: list[int] = []
        labels: list[int] = []
        shown: list[Media] = []
        heard: list[Media] = []
        for block in self._blocks(row, [shape_of(m) for m in media], with_answer):
            tokens = list(block.ids) if block.placeholder is None else [block.placeholder] * block.count
            ids += tokens
            labels += tokens if block.supervised else [IGNORE] * len(tokens)
            shown += [] if block.picture is None else [media[block.picture]]
            heard += [] if block.sound is None else [media[block.sound]]
        frames = [m.frames for m in shown if m.frames is not None]
        return Sample(
            id=row.id,
            input_ids=torch.tensor(ids, dtype=torch.int64),
            labels=torch.tensor(labels, dtype=torch.int64),
            position_ids=torch.arange(len(ids)),
            media=flat(frames, [m.kind == "video" for m in shown]) if frames else {},
            audio=[self._mel(m.audio) for m in heard if m.audio is not None],
        )

    def measure(self, row: Row, infos: Sequence[MediaInfo]) -> TokenCount:
        """See `Processor.measure`. Clips must have been probed with `limits`: the times of their frames are text."""
        try:
            shapes = [planned_shape(info, self.limits, self.factor) for info in infos]
        except ValueError as error:
            raise UserError(f"{where(row)}: {error}") from error
        total = media = prompt = 0
        answered = False
        for block in self._blocks(row, shapes, True):
            answered = answered or block.supervised
            total += len(block)
            media += block.count
            prompt += 0 if answered else len(block)
        return TokenCount(total, media, prompt)

    def count(self, row: Row, infos: Sequence[MediaInfo]) -> int:
        """See `Processor.count`."""
        return self.measure(row, infos).total

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the tokenizer with its chat template. The processor's own files come with the checkpoint's code."""
        self.tokenizer.save_pretrained(directory)

    def agrees_with_checkpoint(self) -> list[str]:
        """What the processor that the checkpoint brings does otherwise, in words; empty: nothing.

        Runs the checkpoint's own Python code (`trust_remote_code`). Raises `UserError` when it cannot be loaded.
        """
        from avlm.models.nemotron_3_nano_omni.agreement import differences

        return differences(self)

    # ---- text

    def _chat(self, thinks: bool, control: Sequence[str]) -> ChatTemplate:
        template = self.tokenizer.chat_template
        if not isinstance(template, str):
            raise UserError(f"model.checkpoint: {self.checkpoint} has no chat template (chat_template.jinja)")
        names = {
            **self.tokenizer.special_tokens_map,
            "enable_thinking": thinks,
            "truncate_history_thinking": False,
        }
        opening = f"{THINK_START}\n" if thinks else ""
        return ChatTemplate(template, names, [END_OF_TURN], control, joined, opening)

    def _chat_of(self, row: Row) -> ChatTemplate:
        """The template with or without reasoning, as the row's answers have it."""
        thinking = set()
        for turn in row.turns:
            text = "".join(part.text for part in turn.parts if isinstance(part, Text))
            if turn.role != "assistant":
                found = next((mark for mark in _THINKS if mark in text), None)
                if found is not None:
                    raise UserError(
                        f"{where(row)}: a {turn.role} turn contains {found!r}, which frames the assistant's reasoning"
                    )
                continue
            whole = text.startswith(f"{THINK_START}\n") and text.count(THINK_START) == text.count(THINK_END) == 1
            if not whole and any(mark in text for mark in _THINKS):
                raise UserError(
                    f"{where(row)}: an answer with reasoning starts with {THINK_START!r} and a newline and holds one "
                    f"{THINK_END!r}; this one starts with {text[:30]!r}"
                )
            thinking.add(whole)
        if len(thinking) == 2:
            raise UserError(f"{where(row)}: some of the row's answers have reasoning and some have none; split the row")
        return self._chats[True in thinking]

    def _blocks(self, row: Row, shapes: Sequence[MediaShape], with_answer: bool) -> Iterator[_Block]:
        """The row's tokens in order. Both `encode` and `measure` are made from it."""
        if len(shapes) != len(row.media):
            raise ValueError(f"row {row.id!r} has {len(row.media)} media, got {len(shapes)}")
        chat = self._chat_of(row)
        pieces = chat.pieces(row) if with_answer else [Piece(chat.prompt(row), False)]
        waiting: dict[MediaKind, deque[int]] = {kind: deque() for kind in MARKERS}
        for index, ref in enumerate(row.media):
            waiting[ref.kind].append(index)
        for piece in pieces:
            text = ""
            for before_marker, kind in split(piece.text):
                text += before_marker
                if kind is None:
                    continue
                if not waiting[kind]:
                    raise UserError(f"{where(row)}: the chat template writes {MARKERS[kind]!r} more often than the row")
                index = waiting[kind].popleft()
                for opening, block in self._media_blocks(row, index, shapes[index]):
                    yield _Block(self._ids(text + opening), piece.supervised)
                    yield block
                    text = PICTURE_END if block.placeholder == self._picture_id else SOUND_END
            if text:
                yield _Block(self._ids(text), piece.supervised)
        left = min((index for indices in waiting.values() for index in indices), default=None)
        if left is not None:
            ref = row.media[left]
            raise UserError(f"{where(row)}: the chat template leaves out {ref.kind} {ref.name!r}")

    def _media_blocks(self, row: Row, index: int, shape: MediaShape) -> Iterator[tuple[str, _Block]]:
        """(text before, placeholders) of a file; behind each the caller writes the closing mark."""
        tokens = (shape.height // self.factor) * (shape.width // self.factor)
        if shape.kind == "image":
            yield PICTURE_START, _Block((), False, self._picture_id, tokens, picture=index)
        elif shape.kind == "video":
            if len(shape.times) != shape.frames:
                raise ValueError(f"row {row.id!r}: the times of {shape.frames} frames are needed; probe with limits")
            for number, label in enumerate(frame_labels(shape.times, self._frames_per_patch)):
                first = index if number == 0 else None
                yield label + PICTURE_START, _Block((), False, self._picture_id, tokens, picture=first)
        sound = self._sound_tokens(shape.audio_samples)
        if sound:
            yield SOUND_START, _Block((), False, self._sound_id, sound, sound=index)
        elif shape.kind == "audio":
            raise UserError(f"{where(row)}: the sound is too short: {shape.audio_samples} samples at 16 kHz")

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    # ---- sound

    def _sound_tokens(self, samples: int) -> int:
        """Tokens of a sound: the encoder's halvings of its 1 + samples // 160 frames; 0 when there are too few.

        The count is that of the published processor (`_estimate_audio_num_embeddings`). Two frames are needed, since
        the spectrogram is divided by its standard deviation over time.
        """
        if samples // HOP < 2:
            return 0
        length = 1 + samples // HOP
        kernel = self._sound.get("subsampling_conv_kernel_size", 3)
        stride = self._sound.get("subsampling_conv_stride", 2)
        factor = self._sound["subsampling_factor"]
        while factor > 1:
            length = (length + (kernel - 1) // 2 * 2 - kernel) // stride + 1
            factor //= 2
        return length

    @cached_property
    def _mel_extractor(self) -> Any:
        from transformers import ParakeetFeatureExtractor

        return ParakeetFeatureExtractor(
            feature_size=self._sound["num_mel_bins"], sampling_rate=SAMPLE_RATE, hop_length=HOP
        )

    def _mel(self, audio: np.ndarray) -> torch.Tensor:
        """[mel_bins, F] float32, F = 1 + samples // 160; the last frame is behind the sound and zero."""
        out = self._mel_extractor(audio, sampling_rate=SAMPLE_RATE, return_tensors="pt")
        return out["input_features"][0].T.contiguous()

    # ---- tokens

    def _id(self, token: str) -> int:
        found = self.tokenizer.convert_tokens_to_ids(token)
        if found is None or found == self.tokenizer.unk_token_id:
            raise UserError(f"model.checkpoint: the tokenizer of {self.checkpoint} has no token {token!r}")
        return int(found)

    def _placeholder(self, kind: MediaKind, configured: int | None) -> int:
        """Id of a placeholder; the model finds it by the number in its config."""
        found = self._id(MARKERS[kind])
        if configured is not None and configured != found:
            raise UserError(
                f"model.checkpoint: in {self.checkpoint} the tokenizer gives {MARKERS[kind]!r} the id {found}, "
                f"config.json says {configured}"
            )
        return found


def _load_configs(checkpoint: str, revision: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """`config.json` and `preprocessor_config.json` (empty when there is none)."""
    from transformers.utils import cached_file

    try:
        found = cached_file(checkpoint, "config.json", revision=revision)
        config = json.loads(Path(str(found)).read_text(encoding="utf-8"))
        if config.get("model_type") != MODEL_TYPE:
            raise UserError(
                f"model.checkpoint: {checkpoint} is a {config.get('model_type')} checkpoint, but model.family is "
                "nemotron_3_nano_omni"
            )
        found = cached_file(
            checkpoint, "preprocessor_config.json", revision=revision, _raise_exceptions_for_missing_entries=False
        )
        pictures = json.loads(Path(found).read_text(encoding="utf-8")) if found else {}
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"model.checkpoint: {checkpoint} has no Nemotron-Omni configuration: {reason}") from error
    return config, pictures


def _load_tokenizer(checkpoint: str, revision: str | None) -> Any:
    """The tokenizer alone: `AutoTokenizer` would ask for the model's code to learn its class."""
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(checkpoint, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"model.checkpoint: {checkpoint} has no tokenizer: {reason}") from error
