"""A source of chance that is another one in every run, and can be had again: for fuzz tests."""

from __future__ import annotations

import os
import random


def new_inputs() -> random.Random:
    """Says its seed, which pytest shows beside a failure; TANDEM_FUZZ_SEED=SEED repeats the inputs."""
    seed = int(os.environ.get("TANDEM_FUZZ_SEED") or random.SystemRandom().getrandbits(32))
    print(f"TANDEM_FUZZ_SEED={seed}")
    return random.Random(seed)
