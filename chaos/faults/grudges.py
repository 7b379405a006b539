"""Who does not hear whom: partitions as sets of (from, to), drawn by a seeded generator. Pure.

The shapes are those that clusters are usually broken with: one apart, two halves, a bridge that alone sees both
halves, a ring in which each sees its neighbours only, and one direction that is lost.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from itertools import product
from typing import Final, Literal

Pair = tuple[str, str]  # who is not heard, who does not hear
Shape = Literal["alone", "halves", "bridge", "ring", "one-way"]
SHAPES: Final[tuple[Shape, ...]] = ("alone", "halves", "bridge", "ring", "one-way")


def between(some: Collection[str], others: Collection[str]) -> frozenset[Pair]:
    """Nobody of the one side hears anybody of the other, and the other way round."""
    cut = set(product(some, others)) | set(product(others, some))
    return frozenset(pair for pair in cut if pair[0] != pair[1])


def alone(one: str, nodes: Collection[str]) -> frozenset[Pair]:
    """One hears nobody and is not heard."""
    return between({one}, set(nodes) - {one})


def halves(rng: random.Random, nodes: Sequence[str]) -> frozenset[Pair]:
    """A drawn majority and the rest do not hear each other."""
    order = rng.sample(nodes, len(nodes))
    majority = len(order) // 2 + 1
    return between(order[:majority], order[majority:])


def bridge(rng: random.Random, nodes: Sequence[str]) -> frozenset[Pair]:
    """Two sides that do not hear each other, and one between them whom all hear. From three nodes on."""
    order = rng.sample(nodes, len(nodes))
    rest, half = order[1:], len(order) // 2
    return between(rest[:half], rest[half:])


def ring(rng: random.Random, nodes: Sequence[str]) -> frozenset[Pair]:
    """Each hears its two neighbours in a drawn circle. Empty below four nodes: there all are neighbours."""
    order = rng.sample(nodes, len(nodes))
    count = len(order)
    return frozenset(
        (order[i], order[j])
        for i, j in product(range(count), repeat=2)
        if (i - j) % count not in {0, 1, count - 1}
    )


def one_way(speaker: str, deaf: Collection[str]) -> frozenset[Pair]:
    """These do not hear the speaker, who hears them."""
    return frozenset((speaker, each) for each in deaf if each != speaker)


def drawn(shape: Shape, rng: random.Random, nodes: Sequence[str], victim: str) -> frozenset[Pair]:
    """Pairs of a shape; `victim` is who is alone, or not heard."""
    match shape:
        case "alone":
            return alone(victim, nodes)
        case "halves":
            return halves(rng, nodes)
        case "bridge":
            return bridge(rng, nodes)
        case "ring":
            return ring(rng, nodes)
        case "one-way":
            return one_way(victim, nodes)
