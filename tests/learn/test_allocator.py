"""The allocator setting takes effect where training needs it."""

from __future__ import annotations

import platform

from hardnet.learn.trainer import keep_freed_memory


def test_it_takes_effect_on_glibc_and_is_harmless_elsewhere() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
