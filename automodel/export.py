"""Finished run -> `<output_dir>/export`: a Hugging Face directory (SFT) or a PEFT adapter (LoRA).

AutoModel's consolidated export writes the thinker's config without `architectures` while its tensor names carry
`thinker.` (nemo-automodel 0.6.0), so every file that is not a weight is taken from the checkpoint that was trained.
Tensors of the source that training did not hold (talker, vocoder) are carried over unchanged, so that the export loads
wherever the source did.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from automodel.checkpoints import latest
from avlm.errors import RunError
from avlm.launch.run import Run
from avlm.utils.folder import MANIFEST

INDEX = "model.safetensors.index.json"
_NOT_COPIED = (INDEX, MANIFEST, ".gitattributes")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


def source_folder(checkpoint: str, revision: str | None) -> Path:
    """Local folder of a checkpoint: itself, or the hub snapshot that training has downloaded."""
    if Path(checkpoint).is_dir():
        return Path(checkpoint)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(checkpoint, revision=revision, local_files_only=True))


def weight_map(folder: Path) -> dict[str, str]:
    """Tensor name -> file name, of all safetensors in a Hugging Face directory."""
    index = folder / INDEX
    if index.is_file():
        found: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return found
    from safetensors import safe_open

    names = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            names.update(dict.fromkeys(tensors.keys(), file.name))
    return names


def _place(source: Path, target: Path) -> None:
    """Hard link where the file system allows, else copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _copy_without_weights(source: Path, target: Path) -> None:
    for item in source.iterdir():
        if item.is_file() and item.suffix not in _WEIGHTS and item.name not in _NOT_COPIED:
            shutil.copy2(item, target / item.name)


def _carry_over(source: Path, target: Path) -> None:
    """Write the source's tensors that `target` lacks, one new file per source file, and the index over all."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    trained, original = weight_map(target), weight_map(source)
    missing = sorted(set(original) - set(trained))
    names = dict(trained)
    for number, file in enumerate(sorted({original[name] for name in missing}), start=1):
        carried = f"carried-over-{number:05d}.safetensors"
        with safe_open(source / file, framework="pt") as tensors:
            part = {name: tensors.get_tensor(name) for name in missing if original[name] == file}
        save_file(part, target / carried, metadata={"format": "pt"})
        names.update(dict.fromkeys(part, carried))
    if len(set(names.values())) > 1 or missing:
        size = sum((target / file).stat().st_size for file in set(names.values()))
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(names.items()))}
        (target / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def export(run: Run) -> Path:
    """Write `<output_dir>/export` from the run's last checkpoint; an older export is replaced when all is written.

    Raises:
        RunError: the last checkpoint holds no exportable weights, or writing failed.
    """
    checkpoint = latest(run.folder)
    if checkpoint is None:
        raise RunError(f"{run.folder} holds no checkpoint to export")
    weights = checkpoint / "model"
    adapter = run.recipe.method.kind == "lora"
    weights = weights if adapter else weights / "consolidated"
    if not any(weights.glob("*.safetensors")):
        raise RunError(f"{weights} holds no safetensors: train to the end of the schedule before exporting")
    target, fresh, old = (run.folder / name for name in ("export", ".export.tmp", ".export.old"))
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir()
    source = source_folder(run.recipe.model.checkpoint, run.recipe.model.revision)
    try:
        for file in weights.iterdir():
            if file.is_file() and (adapter or file.suffix == ".safetensors" or file.name == INDEX):
                _place(file, fresh / file.name)
        if not adapter:
            _copy_without_weights(source, fresh)
            _carry_over(source, fresh)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise RunError(f"the export to {target} could not be written: {error}") from error
    shutil.rmtree(old, ignore_errors=True)
    return target
