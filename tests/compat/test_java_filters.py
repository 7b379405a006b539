"""SQL92 filters beside RocketMQ's own evaluator: what is refused, and what each message is judged to be."""

from __future__ import annotations

import base64
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from expressions import Expressions

from tandemmq import java as stock
from tandemmq.cluster.sql92.grammar import compile_expression
from tandemmq.cluster.sql92.tokens import ExpressionRefused

PROGRAM: Final = Path(__file__).parent / "java" / "Filters.java"
DRAWN: Final = int(os.environ.get("TANDEM_FILTERS_DRAWN", "10000"))
SEED: Final = int(os.environ.get("TANDEM_FILTERS_SEED", "92"))
JVM_S: Final = 240
VERDICTS: Final = ("true", "false", "null", "failed", "refused")

Case = tuple[str, Mapping[str, str]]


def java_verdicts(cases: Iterable[Case], home: Path) -> list[str]:
    """What the evaluator of rocketmq-filter says of each, in one JVM."""
    lines = "".join(
        "\t".join(
            base64.b64encode(text.encode()).decode()
            for text in (expression, *(part for pair in properties.items() for part in pair))
        )
        + "\n"
        for expression, properties in cases
    )
    command = stock.java_command(stock.NEWEST, str(PROGRAM), home, heap_mb=256)
    run = subprocess.run(
        command, input=lines.encode(), stdout=subprocess.PIPE, cwd=home, timeout=JVM_S, check=True,
        env={**os.environ, **stock.java_env(home)},
    )  # fmt: skip
    # what the log says of itself comes first
    said = run.stdout.decode().splitlines()
    return [line.removeprefix("verdict ") for line in said if line.startswith("verdict ")]


def our_verdict(expression: str, properties: Mapping[str, str]) -> str:
    try:
        compiled = compile_expression(expression)
    except ExpressionRefused:
        return "refused"
    try:
        value = compiled.evaluate(properties)
    except ValueError:
        return "failed"
    assert compiled.matches(properties) is (value is True)
    return "null" if value is None else str(value).lower()


def test_every_filter_judges_as_in_rocketmq(java: None, tmp_path: Path) -> None:
    drawn = Expressions(random.Random(SEED))
    cases: list[Case] = [(drawn.expression(), drawn.properties()) for _ in range(DRAWN)]
    theirs = java_verdicts(cases, tmp_path)
    ours = [our_verdict(*case) for case in cases]
    assert len(theirs) == DRAWN
    differing = [
        (*case, f"Java: {their}", f"ours: {our}")
        for case, their, our in zip(cases, theirs, ours, strict=True)
        if their != our
    ]
    assert differing == []
    counts = Counter(theirs)
    assert all(counts[verdict] > DRAWN // 50 for verdict in VERDICTS), counts
