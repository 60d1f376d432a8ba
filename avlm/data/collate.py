"""Samples -> one batch of model arguments, padded or packed.

Labels leave here shifted: `labels[b, t]` is the token that position t must predict, so that a loss compares logits and
labels position by position. Everything else is aligned with `input_ids`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from avlm.data.types import IGNORE, Sample

Batch = dict[str, torch.Tensor]


def collate(samples: Sequence[Sample], pad_id: int, *, pad_to_multiple: int = 1) -> Batch:
    """Pad samples on the right to the longest, rounded up to a multiple of `pad_to_multiple`.

    Returns input_ids, labels, attention_mask [B, S] int64; position_ids [3, B, S] (or [B, S] for a family with 1-D
    positions); the media arguments that occur in any sample, concatenated in order; with sound also input_features
    [sounds, mel_bins, F] float32 and feature_attention_mask [sounds, F] int64, padded to the longest sound.
    """
    return _batch([[sample] for sample in samples], pad_id, _round_up(_longest(samples), pad_to_multiple))


def collate_packs(packs: Sequence[Sequence[Sample]], pack_size: int, pad_id: int) -> Batch:
    """Concatenate the samples of each pack and pad every pack to `pack_size` tokens.

    Like `collate`, and `doc` [B, S] int64: 1, 2, … for the samples of a pack, 0 for padding. Positions start anew in
    each sample, and the last token of a sample has no target. Raises `ValueError` for a pack over `pack_size`.
    """
    for pack in packs:
        length = sum(len(sample.input_ids) for sample in pack)
        if length > pack_size:
            raise ValueError(f"{length} tokens in a pack of {pack_size}: {', '.join(s.id for s in pack)}")
    batch = _batch(packs, pad_id, pack_size)
    docs = [[torch.full_like(s.input_ids, number) for number, s in enumerate(pack, 1)] for pack in packs]
    batch["doc"] = torch.stack([_joined(doc, pack_size, 0) for doc in docs])
    return batch


def shift_labels(labels: torch.Tensor) -> torch.Tensor:
    """[S] labels aligned with tokens -> [S] next-token targets: moved left by one, the last is `IGNORE`."""
    return torch.cat([labels[1:], labels.new_full((1,), IGNORE)])


def _batch(packs: Sequence[Sequence[Sample]], pad_id: int, length: int) -> Batch:
    rows = {
        "input_ids": ([[s.input_ids for s in pack] for pack in packs], pad_id),
        "labels": ([[shift_labels(s.labels) for s in pack] for pack in packs], IGNORE),
        "attention_mask": ([[torch.ones_like(s.input_ids) for s in pack] for pack in packs], 0),
    }
    batch = {name: torch.stack([_joined(parts, length, fill) for parts in row]) for name, (row, fill) in rows.items()}
    positions = [_joined([s.position_ids for s in pack], length, 0) for pack in packs]
    batch["position_ids"] = torch.stack(positions, dim=-2)
    samples = [sample for pack in packs for sample in pack]
    return batch | _media(samples) | _sound(samples)


def _joined(parts: Sequence[torch.Tensor], length: int, fill: int) -> torch.Tensor:
    """[…, length]: the parts one after the other along the last dimension, then `fill`."""
    joined = torch.cat(list(parts), dim=-1)
    return pad(joined, (0, length - joined.shape[-1]), value=fill)


def _media(samples: Sequence[Sample]) -> Batch:
    parts: dict[str, list[torch.Tensor]] = {}
    for sample in samples:
        for name, value in sample.media.items():
            parts.setdefault(name, []).append(value)
    return {name: torch.cat(values) for name, values in parts.items()}


def _sound(samples: Sequence[Sample]) -> Batch:
    mels = [mel for sample in samples for mel in sample.audio]
    if not mels:
        return {}
    frames = max(mel.shape[-1] for mel in mels)
    return {
        "input_features": torch.stack([pad(mel, (0, frames - mel.shape[-1])) for mel in mels]),
        "feature_attention_mask": torch.stack(
            [pad(torch.ones(mel.shape[-1], dtype=torch.int64), (0, frames - mel.shape[-1])) for mel in mels]
        ),
    }


def _longest(samples: Sequence[Sample]) -> int:
    return max(len(sample.input_ids) for sample in samples)


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple
