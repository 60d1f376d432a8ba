"""Floating-point operations of a forward pass, from a model's shapes. A multiply-add counts as two.

Counted are matrix products and convolutions: dense layers (2 × weights for each token), attention (queries with keys,
then weights with values: 4 × heads × head size for each pair of tokens that is compared) and, of experts, the ones a
token is sent to. Norms, activations and softmax are left out (below 1 % together). As in Kaplan et al., 2020
(arXiv:2001.08361, section 2.1), with the attention term that is left out there.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass

from avlm.models.base import get_family


@dataclass(frozen=True)
class Blocks:
    """Operations of a stack of transformer blocks: for each token, and for each pair of tokens that is compared."""

    token: float
    pair: float

    def bidirectional(self, tokens: int) -> float:
        """Operations on a sequence of which every token sees every token."""
        return self.token * tokens + self.pair * tokens * tokens

    def causal(self, tokens: int) -> float:
        """Operations on a sequence of which every token sees itself and those before it."""
        return self.token * tokens + self.pair * tokens * (tokens + 1) / 2


@dataclass(frozen=True)
class Flops:
    """Operations of a model's three parts, projectors included in their towers.

    decoder: tokens of the sequence. vision: patches; the patches of one time step see each other. audio: steps of the
    encoder; those of one window see each other.
    patch: side of a patch in pixels. frames_per_step: frames in one time step. extra_patches: class and register tokens
    of a time step. step_samples: samples at 16 kHz in one audio step. window_steps: audio steps in a window, or None
    when a whole sound is one.
    """

    decoder: Blocks
    vision: Blocks
    audio: Blocks
    patch: int
    frames_per_step: int
    extra_patches: int
    step_samples: float
    window_steps: int | None = None

    def picture(self, frames: int, height: int, width: int) -> float:
        """Operations of the vision tower on `frames` frames of this size in pixels (an image is one frame)."""
        steps = -(-frames // self.frames_per_step)
        patches = (height // self.patch) * (width // self.patch) + self.extra_patches
        return steps * self.vision.bidirectional(patches)

    def sound(self, samples: int) -> float:
        """Operations of the audio tower on a sound of `samples` samples at 16 kHz."""
        steps = math.ceil(round(samples / self.step_samples, 6))
        if self.window_steps is None:
            return self.audio.bidirectional(steps)
        windows, rest = divmod(steps, self.window_steps)
        return windows * self.audio.bidirectional(self.window_steps) + self.audio.bidirectional(rest)


def load_flops(family: str, checkpoint: str, revision: str | None = None) -> Flops:
    """Operations of a checkpoint of `family`: a Hugging Face directory or a hub id.

    Raises `UserError` when the checkpoint has no configuration of this family.
    """
    module, name = get_family(family).flops.split(":")
    found: Flops = getattr(importlib.import_module(module), name)(checkpoint, revision)
    return found
