"""Keep freed memory in the process while training on a CPU."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # from glibc's malloc.h
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc not to return large buffers to the kernel after every training step.

    The kernel zeroes each page it hands out again; with activations of hundreds of megabytes per
    step that costs about half of the training time. All threads share one heap, since those of
    further threads are returned in any case. Returns whether it took effect (glibc only).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _LARGEST_INT), (_M_ARENA_MAX, 1))
    return all([mallopt(name, value) for name, value in settings])
