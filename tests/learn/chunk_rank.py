"""One of two processes that share a batch: describe some rows in chunks, save what came out.

Run as ``chunk_rank.py RANK MEETING_FILE OUTPUT``; a rank of -1 computes the whole batch alone.
"""

from __future__ import annotations

import sys

import torch
from torch import distributed as dist

from hardnet.learn.chunked import ChunkedNet
from hardnet.nets import build_net

SHARES = ([0, 1, 2, 3, 4, 8, 9, 10], [5, 6, 7, 11])  # unequal, and in two stretches each


def main(rank: int, meeting: str, output: str) -> None:
    """Write descriptors, gradients and running statistics."""
    rows = torch.arange(12)
    group = None
    if rank >= 0:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
        rows, group = torch.tensor(SHARES[rank]), dist.group.WORLD
    patches = torch.rand(12, 1, 32, 32, generator=torch.Generator().manual_seed(1)).double()
    weights = torch.randn(12, 128, generator=torch.Generator().manual_seed(2)).double()
    found = {}
    for name in ("hardnet", "tfeat"):
        torch.manual_seed(0)
        net = build_net(name, 0.3).double()
        out = ChunkedNet(net, 3, group)(patches[rows], seed=4, rows=rows, total=12)
        (out * weights[rows]).sum().backward()  # type: ignore[no-untyped-call]
        found[name] = {
            "descriptors": out.detach(),
            "gradients": [p.grad for p in net.parameters()],
            "state": net.state_dict(),
        }
    torch.save(found, output)
    if rank >= 0:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
