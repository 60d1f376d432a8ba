"""Media of Nemotron-3-Nano-Omni: pictures of any sizes, images and videos together, sounds of any lengths.

Defects of `nemo_automodel/components/models/nemotron_omni/model.py` (nemo-automodel 0.6.0):
- an image and a video in one batch fail (`:924`, `:967`), and `:711` (`extract_video_feature`) takes frames of one size
  only, as one clip: a pack of ordinary rows cannot be trained on.
- `:1003-1025` puts the features of all sounds, those of padding included, at the placeholders one after the other; when
  the numbers differ it warns and goes on with the first ones, so every sound but the first of a batch of different
  lengths gets the features of another. The same for images (`:913-924`).
- features are cast to bfloat16, whatever the projector's data type.
Versions: nemo-automodel 0.6.0.
Repair: media arrive as `avlm.models.nemotron_3_nano_omni.pictures` describes them, each picture goes through the vision
tower by itself, sounds go through theirs with a padding mask, and the features are put at the placeholders before
upstream's forward pass, which takes embeddings as they are. A number that does not fit is an error.
Guard: `tests/automodel/test_nemotron.py::test_upstream_still_refuses_images_with_videos` and those that follow it.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from avlm.models.nemotron_3_nano_omni.pictures import MEAN, STD, pictures

if TYPE_CHECKING:
    import torch

AT_ONCE = 16
"""Pictures of one size that go through the vision tower together; its attention is not fused upstream."""


def apply(model: Any, *, always_hear: bool = False) -> None:
    """Wrap the forward pass of this model instance.

    always_hear: run the sound encoder on a batch without sound too, on a short silence of which nothing is kept. Needed
    on several ranks when some batches have sound: FSDP2 splits the encoder's layers even when it is frozen, since it
    does not know it by its name (`nemo_automodel/shared/multimodal_fsdp.py`), and would wait for the other ranks.
    """
    upstream = model.forward

    def forward(
        self: Any,
        input_ids: torch.Tensor,
        *,
        pixel_values: torch.Tensor | None = None,
        imgs_sizes: torch.Tensor | None = None,
        num_frames: torch.Tensor | None = None,
        sound_features: torch.Tensor | None = None,
        sound_attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.cp_mesh is not None and self.cp_mesh.size() > 1:
            raise RuntimeError("context parallelism is not supported for this family")
        embeddings = self.get_input_embeddings()(input_ids)
        seen = None if pixel_values is None else picture_features(self, pixel_values, imgs_sizes, num_frames)
        embeddings = _placed(embeddings, input_ids == self.img_context_token_id, seen, "picture")
        heard = None
        if sound_features is not None:
            heard = hear(self, sound_features, sound_attention_mask)
        elif always_hear:
            heard = hear(self, *_silence(self, input_ids.device))[:0]
        embeddings = _placed(embeddings, input_ids == self.sound_context_token_id, heard, "sound")
        return upstream(input_ids=input_ids, inputs_embeds=embeddings, **kwargs)

    model.forward = MethodType(forward, model)


def picture_features(model: Any, pixel_values: Any, imgs_sizes: Any, num_frames: Any) -> torch.Tensor:
    """[tokens, hidden]: features of all pictures in the order of their placeholders."""
    import torch

    config = model.config
    mean, std = getattr(config, "norm_mean", None) or MEAN, getattr(config, "norm_std", None) or STD
    seen = [
        _see(model, picture, is_clip) for is_clip, picture in pictures(pixel_values, imgs_sizes, num_frames, mean, std)
    ]
    return model.vision_projector(torch.cat(seen))


def _see(model: Any, picture: torch.Tensor, is_clip: bool) -> torch.Tensor:
    """[tokens, features of a pixel-shuffled patch] of an image [1, 3, H, W] or of a clip's frames [T, 3, H, W]."""
    import torch

    tower = model.vision_model
    generator = tower.radio_model.model.patch_generator
    weight = next(model.vision_projector.parameters())
    if is_clip:  # consecutive frames become one picture with more channels, the last frame is repeated if need be
        group = model.video_temporal_patch_dim
        missing = -len(picture) % group
        picture = torch.cat([picture, picture[-1:].expand(missing, -1, -1, -1)])
        picture = picture.reshape(-1, group * picture.shape[1], *picture.shape[2:])
    picture = picture.to(next(tower.parameters()).dtype)
    training, embedder = tower.training, generator.embedder
    tower.eval()  # RADIO's spectral reparametrisation is random in training mode
    if is_clip:
        generator.embedder = generator.video_embedder
    try:
        parts = [_features(tower(part)) for part in picture.split(AT_ONCE)]
    finally:
        generator.embedder = embedder
        if training:
            tower.train()
    height, width = (side // generator.patch_size for side in picture.shape[2:])
    patches = torch.cat(parts).to(weight.dtype).view(len(picture), height, width, -1)
    return model.pixel_shuffle(patches, scale_factor=model.downsample_ratio).flatten(0, 2)


def _features(out: Any) -> torch.Tensor:
    """[N, patches, hidden] of RADIO's output: a tuple with names, or a dict of them when it has adaptors."""
    return out["backbone"].features if isinstance(out, dict) else out.features


def hear(model: Any, sound_features: torch.Tensor, sound_attention_mask: Any) -> torch.Tensor:
    """[tokens, hidden]: features of all sounds [sounds, F, mel_bins], without those of padding.

    A sound of n frames that count has one more, at its end, which is masked out but makes a token of its own where n is
    a multiple of 8: the number of tokens is that of n + 1 frames, as in the published processor.
    """
    import torch

    encoder = model.sound_encoder
    dtype = next(encoder.parameters()).dtype
    mask = sound_attention_mask.bool()
    states = encoder(input_features=sound_features.to(dtype), attention_mask=mask).last_hidden_state
    lengths = encoder._get_subsampling_output_length(mask.sum(-1) + 1)
    kept = states[torch.arange(states.shape[1], device=states.device) < lengths[:, None]]
    return model.sound_projection(kept.to(next(model.sound_projection.parameters()).dtype))


def _silence(model: Any, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The least that the sound encoder takes: 8 frames, and the one behind them."""
    import torch

    mask = torch.tensor([[True] * 8 + [False]], device=device)
    return torch.zeros(*mask.shape, model.sound_encoder.config.num_mel_bins, device=device), mask


def _placed(embeddings: torch.Tensor, places: torch.Tensor, features: torch.Tensor | None, what: str) -> torch.Tensor:
    """Embeddings with `features` at `places`, one for each."""
    wanted, found = int(places.sum()), 0 if features is None else len(features)
    if wanted != found:
        raise RuntimeError(f"{wanted} placeholders of a {what}, but {found} features; is the data of this model?")
    if features is None or not found:
        return embeddings
    return embeddings.masked_scatter(places[..., None], features.to(embeddings.dtype))
