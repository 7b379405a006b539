"""`tandem admin` for users and rules: each command against two brokers that know nothing of each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run

from tandemmq.chaos.asking import registered
from tandemmq.chaos.processes import wait_until
from tandemmq.chaos.servers import Broker, NameServer
from tandemmq.command.exits import ExitCode

pytestmark = pytest.mark.system

SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root0001","password":"rootpw12"}',
}


class Line:
    """The command, signed as the Super user."""

    def __init__(self, names: NameServer, one: Broker, other: Broker) -> None:
        self.names, self.one, self.other = names.address, one.address, other.address

    def does(self, command: str, *arguments: str) -> str:
        done = run("admin", command, *arguments, "-n", self.names)
        assert done.code == ExitCode.OK, done.err
        assert "rootpw12" not in done.out
        return done.out

    def says(self, command: str, *arguments: str) -> Any:
        return json.loads(self.does(command, *arguments, "--json"))

    def fails(self, command: str, *arguments: str) -> str:
        done = run("admin", command, *arguments, "-n", self.names)
        assert done.code != ExitCode.OK, done.out
        return done.err

    def users(self, address: str) -> list[str]:
        return [each["username"] for each in self.says("listUser", "-b", address)]


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: root0001\nsecretKey: rootpw12\n")
    monkeypatch.setenv("TANDEM_CREDENTIALS", str(keys))
    with (
        NameServer(tmp_path).start() as names,
        Broker(tmp_path / "a", names.address, name="broker-a", settings=SETTINGS) as one,
        Broker(tmp_path / "b", names.address, name="broker-b", settings=SETTINGS) as other,
    ):
        for broker in (one, other):
            broker.start()
            wait_until(lambda of=broker: registered(names.address, of.broker_name), 10, "known")  # type: ignore[misc]
        yield Line(names, one, other)


def test_users_are_made_shown_changed_copied_and_deleted(line: Line, tmp_path: Path) -> None:
    password = tmp_path / "shop.txt"
    password.write_text("shoppw12\nnot this\n")
    made = line.does("createUser", "-b", line.one, "-u", "shop", "--password-file", str(password))
    assert f"create user to {line.one} success." in made
    line.does(
        "createUser",
        "-c",
        line.says("clusterList")[0]["cluster"],
        "-u",
        "all",
        "-p",
        "allpw123",
        "-t",
        "Super",
    )
    assert line.users(line.one) == ["all", "root0001", "shop"]
    assert line.users(line.other) == ["all", "root0001"]
    (shown,) = line.says("getUser", "-b", line.one, "-u", "shop")
    assert shown == {
        "username": "shop", "password": "******", "userType": "Normal", "userStatus": "enable",
    }  # fmt: skip
    (shown,) = line.says("getUser", "-b", line.one, "-u", "shop", "--show-passwords")
    assert shown["password"] == "shoppw12"
    line.does("updateUser", "-b", line.one, "-u", "shop", "-p", "otherpw1")
    line.does("updateUser", "-b", line.one, "-u", "shop", "-s", "disable")
    assert f"copy user of shop from {line.one} to {line.other} success." in line.does(
        "copyUser", "-f", line.one, "-t", line.other, "-u", "shop"
    )
    (copied,) = line.says("getUser", "-b", line.other, "-u", "shop", "--show-passwords")
    assert (copied["password"], copied["userStatus"]) == ("otherpw1", "disable")
    line.does("deleteUser", "-b", line.one, "-u", "shop")
    assert "no user shop" in line.fails("getUser", "-b", line.one, "-u", "shop")
    assert "not exist" in line.fails("updateUser", "-b", line.one, "-u", "shop", "-s", "enable")
    assert "-p or --password-file" in line.fails("createUser", "-b", line.one, "-u", "x")
    assert "one of" in line.fails("updateUser", "-b", line.one, "-u", "all")
    line.does("deleteUser", "-b", line.one, "-u", "all")
    line.fails("deleteUser", "-b", line.one, "-u", "root0001")  # the last who may
    assert line.users(line.one) == ["root0001"]


def test_rules_are_made_shown_changed_copied_and_deleted(line: Line) -> None:
    for address in (line.one, line.other):
        line.does("createUser", "-b", address, "-u", "shop", "-p", "shoppw12")
    rule = ("-s", "User:shop", "-r", "Topic:Orders,Group:G*", "-a", "Pub,Sub", "-d", "Allow")
    line.does("createAcl", "-b", line.one, *rule, "-i", "127.0.0.1,10.0.0.0/8")
    (acl,) = line.says("listAcl", "-b", line.one, "-s", "shop")
    assert acl == line.says("getAcl", "-b", line.one, "-s", "User:shop")[0]
    (policy,) = acl["policies"]
    assert [each["resource"] for each in policy["entries"]] == ["Topic:Orders", "Group:G*"]
    assert policy["entries"][0]["actions"] == ["Pub", "Sub"]
    assert policy["entries"][0]["sourceIps"] == ["127.0.0.1", "10.0.0.0/8"]
    deny = ("-s", "User:shop", "-r", "Topic:Orders", "-a", "All", "-d", "Deny")
    line.does("updateAcl", "-b", line.one, *deny)
    table = line.does("listAcl", "-b", line.one, "-r", "Topic:Orders")
    assert "Topic:Orders" in table and "Deny" in table and "[All]" in table
    line.does("copyAcl", "-f", line.one, "-t", line.other, "-s", "User:shop")
    assert line.says("getAcl", "-b", line.other, "-s", "User:shop") == line.says(
        "getAcl", "-b", line.one, "-s", "User:shop"
    )
    line.does("deleteAcl", "-b", line.other, "-s", "User:shop", "-r", "Group:G*")
    (left,) = line.says("getAcl", "-b", line.other, "-s", "User:shop")
    assert [each["resource"] for each in left["policies"][0]["entries"]] == ["Topic:Orders"]
    line.does("deleteAcl", "-b", line.other, "-s", "User:shop")
    assert "no rules" in line.fails("getAcl", "-b", line.other, "-s", "User:shop")
    assert line.says("listAcl", "-b", line.other) == []
    strange = ("-s", "User:nobody", "-r", "Topic:T", "-a", "Pub", "-d", "Allow")
    assert "not" in line.fails("createAcl", "-b", line.one, *strange)
    wrong = ("-s", "User:shop", "-r", "Topic:T", "-a", "Pub", "-d", "Perhaps")
    assert line.fails("createAcl", "-b", line.one, *wrong)
