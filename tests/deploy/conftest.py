"""The image, built once, and the cluster that deploy/compose.yaml makes of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from dockers import IMAGE, Project, build, compose_command, daemon_answers

TIMEOUT_S = 300
BUILD_TIMEOUT_S = 1_200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in _mine(items):
        item.add_marker(pytest.mark.deploy)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Of those that were chosen the first one waits for the image."""
    for number, item in enumerate(_mine(session.items)):
        item.add_marker(pytest.mark.timeout(TIMEOUT_S if number else BUILD_TIMEOUT_S))


def _mine(items: list[pytest.Item]) -> list[pytest.Item]:
    return [each for each in items if Path(each.path).parent == Path(__file__).parent]


@pytest.fixture(scope="session")
def compose() -> list[str]:
    """How docker compose is called here; skips where there is no daemon."""
    if not daemon_answers():
        pytest.skip("no docker daemon answers: make compose-test starts one")
    command = compose_command()
    if command is None:
        pytest.skip("no docker compose: apt-get install docker-compose")
    return command


@pytest.fixture(scope="session")
def image(compose: list[str]) -> str:
    build()
    return IMAGE


@pytest.fixture(scope="module")
def cluster(image: str, compose: list[str]) -> Iterator[Project]:
    """Not started; nothing of it is left afterwards, whatever a test did."""
    project = Project(f"tandem-test-{os.getpid()}", ("compose.yaml",), compose)
    try:
        yield project
    finally:
        project.compose("down", "-v")
