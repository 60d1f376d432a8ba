"""Measures packing, balance and planning: `python -m tools.bench_packing [--rows N]`. Needs no data and no GPU.

Prints how full packs are on several mixes of lengths, how evenly the packs of an optimizer step are dealt to 8 ranks,
and what planning a large dataset takes. `--json` prints the same numbers for a machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from avlm.data.balance import CostModel, deal, imbalance
from avlm.data.order import Epochs
from avlm.data.packing import pack
from avlm.data.processing import MediaShape
from avlm.data.types import SAMPLE_RATE
from avlm.models.flops import load_flops

PACK = 21_504
RANKS = 8
DEMO_LENGTHS = (67, 72, 74, 76, 81, 83, 88, 93, 95, 100, 105, 107)
DEMO_COUNTS = (121, 40, 95) * 4
"""Token counts of the 1,024 training rows of `avlm data make-demo` with the tiny recipe."""
TEXT_TOKENS = 100
TOKENS_A_SECOND = 256 + 13
"""Two frames of 512 × 512 a second, and sound."""


@dataclass(frozen=True)
class Fill:
    """How full the packs of a mix are; `dropped` rows are in no pack."""

    mix: str
    rows: int
    pack_size: int
    packs: int
    fill: float
    dropped: int


@dataclass(frozen=True)
class Balance:
    """Mean and worst step of an epoch: largest / mean - 1 of the ranks' summed costs.

    `lockstep`: mean loss when ranks wait for each other in every micro-batch. `order`: `mean` of packs dealt in order.
    """

    mix: str
    packs_in_step: int
    steps: int
    mean: float
    worst: float
    lockstep: float
    order: float


@dataclass(frozen=True)
class Planning:
    """Seconds and peak memory (of the whole process, Python and NumPy included) of planning one epoch."""

    mix: str
    rows: int
    seconds: float
    peak_mib: int


def demo(rows: int) -> np.ndarray:
    """Lengths drawn from those of the demo's rows."""
    return _random().choice(DEMO_LENGTHS, rows, p=np.array(DEMO_COUNTS) / sum(DEMO_COUNTS))


def long_tail(rows: int) -> np.ndarray:
    """Log-normal lengths, median 1,808, the longest as long as a pack."""
    return np.exp(_random().normal(7.5, 1.3, rows)).clip(16, PACK)


def short_tail(rows: int) -> np.ndarray:
    """Log-normal lengths, median 665."""
    return np.exp(_random().normal(6.5, 1.2, rows)).clip(16, PACK)


def clips(rows: int) -> np.ndarray:
    """Clips of 1,000 to 8,000 tokens."""
    return _random().integers(1000, 8001, rows)


MIXES: dict[str, tuple[Callable[[int], np.ndarray], int]] = {
    "demo, packs of 1,024": (demo, 1024),
    "demo": (demo, PACK),
    "log-normal": (short_tail, PACK),
    "long tail": (long_tail, PACK),
    "clips of 1k to 8k": (clips, PACK),
}


def _random() -> np.random.Generator:
    return np.random.default_rng(0)


def fills(rows: int) -> list[Fill]:
    """Fill of every mix, and of the demo's 1,024 rows as they are."""
    found = []
    for name, (mix, size), count in [*((n, m, rows) for n, m in MIXES.items()), ("demo itself", (demo, 1024), 1024)]:
        lengths = mix(count).astype(np.int32)
        if name == "demo itself":
            lengths = np.repeat(DEMO_LENGTHS, DEMO_COUNTS)
        packs = pack(lengths, size)
        dropped = count - len(np.unique(packs.members))
        found.append(Fill(name, count, size, len(packs), int(lengths.sum()) / (len(packs) * size), dropped))
    return found


def costs_of(lengths: np.ndarray) -> np.ndarray:
    """Costs for Qwen3-Omni-30B-A3B with frozen towers: most rows are clips, one in ten is text, one in ten sound."""
    model = CostModel(load_flops("qwen3_omni_moe", "Qwen/Qwen3-Omni-30B-A3B-Instruct"), decoder=3, vision=1, audio=1)
    kinds = _random().integers(0, 10, len(lengths))
    costs = []
    for tokens, kind in zip(lengths.tolist(), kinds.tolist(), strict=True):
        seconds = max(tokens - TEXT_TOKENS, 0) / (13 if kind == 1 else TOKENS_A_SECOND)
        sound = int(seconds * SAMPLE_RATE)
        media = [MediaShape("video", int(2 * seconds), 512, 512, audio_samples=sound)]
        if kind < 2:
            media = [MediaShape("audio", audio_samples=sound)] if kind else []
        costs.append(model.row(tokens, media))
    return np.array(costs, np.float32)


def balances(rows: int) -> list[Balance]:
    """Balance of the long-tailed mixes for steps of several sizes."""
    found = []
    for name in ("long tail", "clips of 1k to 8k"):
        lengths = MIXES[name][0](rows).astype(np.int32)
        epochs = Epochs(lengths, pack_size=PACK)
        packs = epochs.items(0)
        costs = packs.sums(costs_of(lengths)) + (PACK - packs.sums(lengths))
        for size in (128, 64, 32, 16):
            whole = costs[: len(costs) // size * size].reshape(-1, size)
            plain = np.arange(size).reshape(size // RANKS, RANKS, 1)
            dealt = np.array([imbalance(step, deal(step, RANKS, size // RANKS, 1)) for step in whole])
            before = np.mean([imbalance(step, plain)[0] for step in whole])
            mean, lockstep = dealt.mean(axis=0)
            found.append(Balance(name, size, len(whole), float(mean), float(dealt[:, 0].max()), lockstep, before))
    return found


def planning(rows: int) -> list[Planning]:
    """Time of order, packs and deal of one epoch of each mix."""
    found = []
    for name, (mix, size) in MIXES.items():
        lengths = mix(rows).astype(np.int32)
        costs = lengths.astype(np.float32)
        started = time.perf_counter()
        epochs = Epochs(lengths, costs=costs, pack_size=size)
        for step in range(epochs.steps(0, 128)):
            epochs.plan(0, step, RANKS, 128 // RANKS, 1)
        seconds = time.perf_counter() - started
        found.append(Planning(name, rows, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench_packing", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows to plan (default: a million)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    plans = planning(options.rows)  # first: what comes later would count for its memory
    full, even = fills(50_000), balances(50_000)
    if options.json:
        print(
            json.dumps(
                {
                    "planning": [asdict(p) for p in plans],
                    "fill": [asdict(f) for f in full],
                    "balance": [asdict(b) for b in even],
                },
                indent=2,
            )
        )
        return
    print(f"planning one epoch (order, packs, {RANKS} ranks)       rows   seconds   peak MiB")
    for p in plans:
        print(f"  {p.mix:<40}{p.rows:>12,}{p.seconds:>10.1f}{p.peak_mib:>11,}")
    print("packs                                          rows   pack size     packs      fill  dropped")
    for f in full:
        print(f"  {f.mix:<36}{f.rows:>12,}{f.pack_size:>12,}{f.packs:>10,}{100 * f.fill:>9.2f} %{f.dropped:>8}")
    print(f"cost over {RANKS} ranks: max / mean - 1   packs a step     steps    mean   worst   lockstep   in order")
    for b in even:
        print(
            f"  {b.mix:<32}{b.packs_in_step:>12}{b.steps:>14,}{100 * b.mean:>7.2f}%{100 * b.worst:>7.2f}%"
            f"{100 * b.lockstep:>10.2f}%{100 * b.order:>10.2f}%"
        )


if __name__ == "__main__":
    main()
