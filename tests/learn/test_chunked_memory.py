"""Memory of a step in chunks: what is kept per patch, and nothing that grows faster."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import sys
from pathlib import Path
import torch
from hardnet.learn.trainer import keep_freed_memory
from hardnet.learn.chunked import ChunkedNet
from hardnet.nets import build_net
keep_freed_memory()
torch.set_num_threads(1)
patches = torch.rand(int(sys.argv[1]), 1, 32, 32)
chunked = ChunkedNet(build_net("hardnet", 0.1), 32)
for seed in range(2):
    chunked(patches, seed).sum().backward()
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_grows_by_256_kb_per_patch() -> None:
    peaks = [
        int(subprocess.check_output([sys.executable, "-c", PROGRAM, str(n)])) for n in (128, 512)
    ]
    # 4 KB for the patch itself; plain training takes 1.1 MB.
    assert 240 < (peaks[1] - peaks[0]) / (512 - 128) < 300
