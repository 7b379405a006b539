"""cluster/config.py: Java's properties dialect, and typed settings from it."""

from __future__ import annotations

import enum
import logging
import time
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.cluster.config import (
    ConfigError,
    edit_properties_file,
    format_properties,
    parse_properties,
    parse_settings,
    read_properties,
)


class Fruit(enum.Enum):
    APPLE = "APPLE"
    PEAR = "PEAR"


class Settings(
    msgspec.Struct,
    frozen=True,
    rename={"port": "listenPort", "on": "switchOn", "fruit": "fruitKind", "name": "ownName"},
):
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 10911
    on: bool = True
    fruit: Fruit = Fruit.APPLE
    name: str = ""
    ratio: float = 0.5

    def __post_init__(self) -> None:
        if self.name == "impossible":
            raise ValueError("ownName must be possible")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1", {"a": "1"}),
        ("a: 1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("  a\t=\t1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("# a=1\n! b=2\n   # c=3\nd=4", {"d": "4"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("a=1;2\\\n   ;3", {"a": "1;2;3"}),
        ("a=ends\\\\\nb=2", {"a": "ends\\", "b": "2"}),
        ("a=C\\:\\\\x\\tq", {"a": "C:\\x\tq"}),
        ("a\\ b\\=c=1", {"a b=c": "1"}),
        ("a=\\u4e2d\\u0041", {"a": "\u4e2dA"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
        ("\n\n  \n", {}),
        ("# comment \\\na=1", {"a": "1"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_file_is_latin1_and_its_absence_is_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"name=caf\xe9\n")
    assert read_properties(path) == {"name": "caf\u00e9"}
    with pytest.raises(ConfigError, match=r"nothing\.conf"):
        read_properties(tmp_path / "nothing.conf")


def test_broken_unicode_escape_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        parse_properties("a=\\u12")


_text = st.text(st.characters(min_codepoint=1, exclude_categories=("Cs",)), max_size=20)


@given(st.dictionaries(_text.filter(lambda key: key.strip()), _text, max_size=4))
def test_formatted_properties_read_back_as_they_were(properties: dict[str, str]) -> None:
    # Blanks around values are the reader's to drop: settings never need them.
    trimmed = {key.strip(): value.strip() for key, value in properties.items()}
    found = parse_properties(format_properties(trimmed))
    assert {key: value.strip() for key, value in found.items()} == trimmed


def test_no_value_smuggles_in_another_setting() -> None:
    assert parse_properties(format_properties({"a": "1\nb=2\r\nc=3"})) == {"a": "1\nb=2\r\nc=3"}


def test_settings_become_typed_fields_by_rocketmqs_keys() -> None:
    found = parse_settings(
        Settings,
        {"listenPort": " 10920 ", "switchOn": "FALSE", "fruitKind": "PEAR", "ratio": "0.75"},
    )
    assert found == Settings(port=10920, on=False, fruit=Fruit.PEAR, ratio=0.75)


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("listenPort", "eleven", "a whole number at least 1 and at most 65535"),
        ("listenPort", "70000", "a whole number at least 1 and at most 65535"),
        ("listenPort", "10911 # mine", "a whole number"),
        ("switchOn", "maybe", "true or false"),
        ("fruitKind", "apple", "one of APPLE, PEAR"),
        ("ratio", "half", "a number"),
    ],
)
def test_bad_value_names_key_value_and_what_is_allowed(key: str, text: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(Settings, {key: text})
    assert caught.value.key == key
    assert caught.value.value == text
    assert allowed in caught.value.allowed


def test_broken_relation_between_settings_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="ownName must be possible"):
        parse_settings(Settings, {"ownName": "impossible"})


def test_unknown_key_is_warned_about_with_the_nearest_known_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        parse_settings(Settings, {"listenPrt": "1", "elsewhere": "x"}, also_known={"elsewhere"})
    assert [record.getMessage() for record in caplog.records] == [
        "unknown setting ignored key=listenPrt did_you_mean=listenPort"
    ]


def test_comment_behind_a_value_is_kept_and_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = parse_settings(Settings, {"ownName": "10.0.0.1 # my address"})
    assert found.name == "10.0.0.1 # my address"
    assert "put it on its own line" in caplog.text


def test_edited_file_keeps_comments_order_and_unknown_lines(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# my broker\na=1\nlong=x\\\n  y\n\nb: 2\na=3\n")
    edit_properties_file(path, {"a": "9", "long": "z", "new": "n"})
    assert path.read_text() == "# my broker\na=9\nlong=z\n\nb: 2\nnew=n\n"
    assert (tmp_path / "broker.conf.bak").read_text().startswith("# my broker\na=1\n")


def test_who_may_read_a_settings_file_stays_when_it_is_changed(tmp_path: Path) -> None:
    """It may hold passwords."""
    path = tmp_path / "broker.conf"
    path.write_text("a=1\n")
    path.chmod(0o600)
    edit_properties_file(path, {"a": "2"})
    assert {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {
        "broker.conf": 0o600, "broker.conf.bak": 0o600,
    }  # fmt: skip


def test_only_what_ends_a_line_for_java_ends_one_when_a_file_is_changed(tmp_path: Path) -> None:
    """A byte of a letter in UTF-8, read as Latin-1, is a line end to others: a comment became a setting."""
    path = tmp_path / "broker.conf"
    path.write_bytes("# Åauthenticated\n# \x0bb=9\r\nname=Å\ra=1\n".encode())
    before = read_properties(path)
    edit_properties_file(path, {"a": "2"})
    assert read_properties(path) == {**before, "a": "2"}
    assert before.keys() == {"name", "a"}


def test_many_continued_lines_are_read_in_linear_time() -> None:
    began = time.perf_counter()
    (found,) = parse_properties("k=" + "v\\\n" * 300_000 + "\n").items()
    assert found == ("k", "v" * 300_000)
    assert parse_properties("\\\n" * 300_000 + "a=1") == {"a": "1"}
    assert time.perf_counter() - began < 10
