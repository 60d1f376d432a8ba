from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.avlm.data.fuzz import PARTS


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", PARTS)
def test_damaged_files_are_read_or_refused(part: str, tmp_path: Path) -> None:
    """Never a crash, a hang, a leak, a huge allocation or an error of another kind."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.avlm.data.fuzz", str(tmp_path), part]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), timeout=200)
    assert done.returncode == 0, done.stderr[-3_000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["defects"] == []
    assert result["left_open"] == 0
    assert result["slowest"][0] < 10, result["slowest"]
    assert result["megabytes"] < 1_000
    assert all(result["outcomes"][name] > 30 for name in ("read", "damaged", "refused")), result["outcomes"]
