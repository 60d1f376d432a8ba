from __future__ import annotations

import pytest
import torch

from avlm.data.collate import collate, collate_packs, shift_labels
from avlm.data.types import IGNORE, Sample

PAD = 0


def sample(
    id: str, ids: list[int], *, video: int = 0, image: int = 0, sounds: tuple[int, ...] = (), axes: int = 3
) -> Sample:
    """All tokens supervised; media values are the sample's first id, so their order shows."""
    tokens = torch.tensor(ids)
    positions = torch.arange(len(ids), dtype=torch.float32)
    media = {}
    if video:
        media |= {
            "pixel_values_videos": torch.full((4 * video, 2), float(ids[0])),
            "video_grid_thw": torch.tensor([[1, 2, 2]] * video),
            "video_second_per_grid": torch.full((video,), 1.0),
        }
    if image:
        media |= {
            "pixel_values": torch.full((4 * image, 2), float(ids[0])),
            "image_grid_thw": torch.tensor([[1, 2, 2]] * image),
        }
    mels = [torch.full((128, frames), float(ids[0] + k)) for k, frames in enumerate(sounds)]
    return Sample(id, tokens, tokens.clone(), positions.expand(axes, -1) if axes == 3 else positions, media, mels)


TEXT = sample("text", [1, 2, 3])
VIDEO = sample("video", [11, 12, 13, 14], video=2)
SOUND = sample("sound", [21, 22], sounds=(30, 50))
IMAGE = sample("image", [31], image=1)
BOTH = sample("both", [41, 42], video=1, sounds=(40,))


def test_shifted_labels() -> None:
    assert shift_labels(torch.tensor([5, IGNORE, 7])).tolist() == [IGNORE, 7, IGNORE]


def test_padding() -> None:
    batch = collate([TEXT, VIDEO], PAD)
    assert set(batch) == {
        "input_ids",
        "labels",
        "attention_mask",
        "position_ids",
        "pixel_values_videos",
        "video_grid_thw",
        "video_second_per_grid",
    }
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0], [11, 12, 13, 14]]
    assert batch["labels"].tolist() == [[2, 3, IGNORE, IGNORE], [12, 13, 14, IGNORE]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch["position_ids"].shape == (3, 2, 4)
    assert batch["position_ids"][:, 1].tolist() == [[0.0, 1.0, 2.0, 3.0]] * 3
    assert all(value.is_contiguous() for value in batch.values())


def test_every_label_is_the_next_token_or_ignored() -> None:
    batch = collate([TEXT, VIDEO, SOUND, IMAGE, BOTH], PAD)
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        kept = labels != IGNORE
        assert (labels[:-1][kept[:-1]] == ids[1:][kept[:-1]]).all()
        assert not kept[-1]


def test_pad_to_multiple() -> None:
    assert collate([TEXT], PAD, pad_to_multiple=8)["input_ids"].shape == (1, 8)
    assert collate([VIDEO], PAD, pad_to_multiple=4)["input_ids"].shape == (1, 4)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]])
def test_media_follow_the_samples(order: list[int]) -> None:
    samples = [[TEXT, VIDEO, SOUND, IMAGE, BOTH][i] for i in order]
    batch = collate(samples, PAD)
    first = [int(s.input_ids[0]) for s in samples]
    videos = {11: 8, 41: 4}
    assert batch["pixel_values_videos"][:, 0].tolist() == [float(i) for i in first for _ in range(videos.get(i, 0))]
    assert batch["video_grid_thw"].shape == (3, 3)
    assert batch["pixel_values"].shape == (4, 2)
    frames = {21: [30, 50], 41: [40]}
    lengths = [n for i in first for n in frames.get(i, [])]
    assert batch["input_features"].shape == (3, 128, 50)
    assert batch["feature_attention_mask"].sum(1).tolist() == lengths
    values = [float(i + k) for i in first for k in range(len(frames.get(i, [])))]
    for mel, mask, value in zip(batch["input_features"], batch["feature_attention_mask"], values, strict=True):
        assert (mel[:, mask.bool()] == value).all()
        assert (mel[:, ~mask.bool()] == 0).all()


def test_absent_media_are_absent() -> None:
    assert set(collate([TEXT], PAD)) == {"input_ids", "labels", "attention_mask", "position_ids"}
    assert {"pixel_values", "pixel_values_videos"}.isdisjoint(collate([TEXT, SOUND], PAD))


def test_one_dimensional_positions() -> None:
    batch = collate([sample("a", [1, 2], axes=1), sample("b", [3], axes=1)], PAD)
    assert batch["position_ids"].tolist() == [[0, 1], [0, 0]]


def test_case_c3_packs() -> None:
    a, b = sample("A", [1, 2, 3], axes=1), sample("B", [4, 5], axes=1)
    batch = collate_packs([[a, b]], 8, PAD)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]
    assert batch["position_ids"][0, :5].tolist() == [0, 1, 2, 0, 1]
    assert batch["doc"].tolist() == [[1, 1, 1, 2, 2, 0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0]]
    assert batch["labels"].tolist() == [[2, 3, IGNORE, 5, IGNORE, IGNORE, IGNORE, IGNORE]]
    assert (batch["labels"] != IGNORE).sum() == 3
    borders = [0, *(batch["doc"][0].bincount()[1:].cumsum(0)).tolist()]
    assert borders == [0, 3, 5]


def test_packs_hold_what_their_samples_hold_alone() -> None:
    packs = [[TEXT, BOTH], [VIDEO, SOUND, IMAGE]]
    packed = collate_packs(packs, 9, PAD)
    assert packed["doc"].shape == (2, 9)
    assert packed["position_ids"].shape == (3, 2, 9)
    alone = collate([s for p in packs for s in p], PAD)
    for name in ("input_ids", "labels"):
        keep = packed["doc"] > 0
        assert packed[name][keep].tolist() == alone[name][alone["attention_mask"].bool()].tolist()
    media = set(alone) - {"input_ids", "labels", "attention_mask", "position_ids"}
    assert len(media) == 7
    assert all(torch.equal(packed[name], alone[name]) for name in media)


def test_pack_over_its_size() -> None:
    with pytest.raises(ValueError, match="7 tokens in a pack of 6: text, video"):
        collate_packs([[TEXT, VIDEO]], 6, PAD)
