"""What the camera-ready of the paper prints and its preprint does not.

All of it on the H100 with Qwen2.5-32B. Of branches = 2 the text has no number.
"""

from __future__ import annotations

from .testbeds import Paper

__all__ = ["BREAKDOWN", "BREAKDOWN_TESTBED", "ONE_BRANCH"]

ONE_BRANCH = {("h100", "4096/32/32"): Paper(hicache=1.42 / 1.24, kvflow=1.42)}
"""Branches = 1, by testbed and mix: 1.24 times HiCache's speed, 1.42 times that of
SGLang without it."""

BREAKDOWN = {"kvflow-evict": 1.11, "kvflow": 1.29}
"""Over HiCache: eviction alone, and with prefetching. Of which mix, the notes that we go
by do not say."""
BREAKDOWN_TESTBED = "h100"
