"""Where power cannot be cut the campaign says so, and starts nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tandemmq.chaos import hostcuts


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("geteuid", lambda: 1000, "root"), ("which", lambda tool: None, "mkfs.xfs")],
)
def test_without_the_means_it_ends_with_3_and_the_reason(
    name: str, value: object, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil if name == "which" else os, name, value)
    directory = tmp_path / "run"
    assert hostcuts.main(["--fs", "xfs", "--directory", str(directory)]) == hostcuts.UNSUPPORTED
    assert said in capsys.readouterr().err
    assert not directory.exists()
