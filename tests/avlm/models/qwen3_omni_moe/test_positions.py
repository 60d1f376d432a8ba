from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from avlm.models.qwen3_omni_moe.positions import MediaSpan, TextSpan, rope_positions, sound_tokens


@pytest.mark.parametrize(("frames", "tokens"), [(0, 0), (1, 1), (8, 1), (9, 2), (100, 13), (101, 14), (400, 52)])
def test_sound_tokens(frames: int, tokens: int) -> None:
    assert sound_tokens(frames) == tokens


def test_sound_tokens_are_those_of_upstream() -> None:
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import _get_feat_extract_output_lengths

    frames = np.arange(3001)
    assert [sound_tokens(int(n)) for n in frames] == _get_feat_extract_output_lengths(frames).tolist()


def test_positions_are_those_of_upstream() -> None:
    """Random sequences of text, images, clips with sound and sounds, with frame distances that are not round."""
    import torch
    from transformers import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration

    config = Qwen3OmniMoeThinkerConfig(position_id_per_seconds=13, vision_start_token_id=151652)
    upstream = SimpleNamespace(config=config, spatial_merge_size=2)
    kind = Qwen3OmniMoeThinkerForConditionalGeneration
    upstream.get_llm_pos_ids_for_vision = partial(kind.get_llm_pos_ids_for_vision, upstream)
    random = np.random.RandomState(0)
    for _ in range(40):
        spans: list[TextSpan | MediaSpan] = [TextSpan((0,))]
        ids, images, videos, seconds, frames = [0], [], [], [], []
        for _ in range(random.randint(1, 5)):
            rows, columns, steps, mel = (int(random.randint(1, high)) for high in (6, 6, 7, 900))
            distance = float(random.choice([0.5, 1.0, 2 / 3, 0.6 + 0.1, 1.001, random.rand()]))
            what = random.choice(["image", "clip", "sound"])
            if what == "image":
                spans += [TextSpan((config.vision_start_token_id,)), MediaSpan((1, rows, columns))]
                ids += [config.vision_start_token_id, *[config.image_token_id] * len(spans[-1])]
                images.append([1, 2 * rows, 2 * columns])
            elif what == "clip":
                start = (config.vision_start_token_id, config.audio_start_token_id)
                spans += [TextSpan(start), MediaSpan((steps, rows, columns), distance, sound_tokens(mel))]
                # upstream reads the order from times, not from these ids
                ids += [*start, *[config.video_token_id] * (steps * rows * columns)]
                ids += [config.audio_token_id] * sound_tokens(mel)
                videos.append([steps, 2 * rows, 2 * columns])
                seconds.append(distance)
                frames.append(mel)
            else:
                spans += [TextSpan((config.audio_start_token_id,)), MediaSpan(sound=sound_tokens(mel))]
                ids += [config.audio_start_token_id, *[config.audio_token_id] * len(spans[-1])]
                frames.append(mel)
            text = tuple(range(random.randint(2, 5)))
            spans.append(TextSpan(text))
            ids += text
        if not images and not videos:
            continue
        expected, _ = kind.get_rope_index(
            upstream,  # type: ignore[arg-type]
            torch.tensor([ids]),
            torch.tensor(images) if images else None,
            torch.tensor(videos) if videos else None,
            torch.ones(1, len(ids)),
            True,
            torch.tensor(frames),
            torch.tensor(seconds),
        )
        np.testing.assert_allclose(rope_positions(spans, 13)[0], expected[:, 0].numpy(), rtol=1e-6)


def test_text_counts_up() -> None:
    positions, is_sound = rope_positions([TextSpan((5, 6)), TextSpan(()), TextSpan((7,))], 13)
    assert positions.tolist() == [[0, 1, 2]] * 3
    assert positions.dtype == np.float32
    assert not is_sound.any()
    assert rope_positions([], 13)[0].shape == (3, 0)


def test_video_counts_time_in_units_and_space_in_tokens() -> None:
    # two steps of 1 × 2 tokens, half a second apart, at 10 units a second
    positions, _ = rope_positions([TextSpan((1,)), MediaSpan((2, 1, 2), 0.5), TextSpan((2,))], 10)
    assert positions[0].tolist() == [0, 1, 1, 6, 6, 7]
    assert positions[1].tolist() == [0, 1, 1, 1, 1, 7]
    assert positions[2].tolist() == [0, 1, 2, 1, 2, 7]


def test_sound_is_merged_by_time_and_pictures_go_first() -> None:
    positions, is_sound = rope_positions([MediaSpan((2, 1, 1), 0.2, sound=4), TextSpan((1,))], 10)
    assert is_sound.tolist() == [False, True, True, False, True, True, False]
    assert positions[0].tolist() == [0, 0, 1, 2, 2, 3, 4]


def test_after_a_clip_positions_go_on_from_its_last_run() -> None:
    # three rows of vision tokens at time 0, then sound 0 … 1: upstream goes on from the sound, not from row 2
    positions, is_sound = rope_positions([MediaSpan((1, 3, 1), 1.0, sound=2), TextSpan((1,))], 10)
    assert is_sound.tolist() == [False, False, False, True, True, False]
    assert positions[1].tolist() == [0, 1, 2, 0, 1, 2]
