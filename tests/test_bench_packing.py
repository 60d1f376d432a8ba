"""The packing benchmark runs, and its figures hold on fewer rows."""

from __future__ import annotations

import pytest

from tools import bench_packing


def test_fill() -> None:
    found = bench_packing.fills(30_000)
    assert len(found) == len(bench_packing.MIXES) + 1
    assert all(f.fill >= 0.985 and f.dropped == 0 for f in found)


def test_balance() -> None:
    found = {(b.mix, b.packs_in_step): b for b in bench_packing.balances(5_000)}
    for mix in ("long tail", "clips of 1k to 8k"):
        assert found[mix, 128].worst <= 0.03
        assert found[mix, 128].mean < found[mix, 128].order


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_packing, "fills", lambda rows: [bench_packing.Fill("mix", rows, 10, 3, 0.991, 0)])
    monkeypatch.setattr(bench_packing, "balances", lambda rows: [])
    bench_packing.main(["--rows", "2000"])
    out = capsys.readouterr().out
    assert "2,000" in out and "99.10 %" in out
    bench_packing.main(["--rows", "2000", "--json"])
    assert capsys.readouterr().out.startswith("{")
