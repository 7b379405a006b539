"""cluster/access/users.py: users, their rules, and RocketMQ's refusals of changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.cluster.access.rights import AccessRefused
from tandemmq.cluster.access.users import (
    AccessUser,
    PolicyBody,
    RuleBody,
    RulesBody,
    UserBody,
    UserDirectory,
)

ROOT = AccessUser("root", "rootpw12", is_super=True)
CLERK = AccessUser("clerk", "clerkpw1")


@pytest.fixture
def users() -> UserDirectory:
    found = UserDirectory()
    found.ensure(ROOT)
    found.create_user("bob", UserBody(password="bob12345"), ROOT)
    return found


def rules(
    resource: str = "Topic:t", *actions: str, subject: str | None = "User:bob", kind: str = ""
) -> RulesBody:
    entry = RuleBody(resource, list(actions or ("Pub",)), None, "Allow")
    return RulesBody(subject, [PolicyBody(kind or None, [entry])])


Change = Callable[[UserDirectory], Any]


@pytest.mark.parametrize(
    ("change", "code", "remark"),
    [
        (lambda u: u.create_user(None, UserBody(), ROOT), 29, "The username is blank"),
        (lambda u: u.create_user(" ", UserBody(), ROOT), 16, "username can not be blank"),
        (lambda u: u.create_user("x", UserBody(password=" "), ROOT), 16, "password can not be blank"),
        (lambda u: u.create_user("bob", UserBody(password="p"), ROOT), 16, "The user is existed"),
        (lambda u: u.create_user("x", UserBody(password="p", userType="Super"), CLERK), 1,
         "The super user can only be create by super user"),
        (lambda u: u.update_user("bob", UserBody(userType="super"), CLERK), 1,
         "The super user can only be update by super user"),
        (lambda u: u.update_user("x", UserBody(), ROOT), 16, "The user is not exist"),
        (lambda u: u.update_user("root", UserBody(password="mine"), CLERK), 16,
         "The super user can only be update by super user"),
        (lambda u: u.delete_user("root", CLERK), 16, "The super user can only be update by super user"),
        (lambda u: u.delete_user("", ROOT), 16, "username can not be blank"),
        (lambda u: u.put_rules("User:x", rules(subject="User:x")), 16, "The subject of User:x is not exist."),
        (lambda u: u.put_rules("User:bob", RulesBody("User:bob")), 16, "The body of acl is null"),
        (lambda u: u.put_rules("User:bob", RulesBody(None, [PolicyBody()])), 16, "The policies is empty."),
        (lambda u: u.put_rules("User:root", rules()), 16, "The subject of the header is not that of the body."),
        (lambda u: u.put_rules("User:bob", rules("Queue:x")), 16, "The resource is null."),
        (lambda u: u.delete_rules("User:x", None, None), 16, "The subject is not exist."),
        (lambda u: u.delete_rules("User:bob", None, None), 16, "The acl is not exist."),
        (lambda u: u.delete_rules("bob", None, None), 16, "The subject is null."),
        (lambda u: u.get_rules("User:x"), 16, "The subject is not exist."),
    ],
)  # fmt: skip
def test_refused_changes_change_nothing(
    users: UserDirectory, change: Change, code: int, remark: str
) -> None:
    before = users.to_json()
    with pytest.raises(AccessRefused) as caught:
        change(users)
    assert (caught.value.code, caught.value.remark) == (code, remark)
    assert users.to_json() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda u: u.delete_user("root", ROOT),
        lambda u: u.update_user("root", UserBody(userStatus="disable"), ROOT),
        lambda u: u.update_user("root", UserBody(userType="Normal"), ROOT),
    ],
)
def test_the_last_super_user_stays(users: UserDirectory, change: Change) -> None:
    with pytest.raises(AccessRefused, match="last super user"):
        change(users)
    users.create_user("second", UserBody(password="p", userType="Super"), ROOT)
    change(users)


def test_a_deleted_user_takes_the_rules_along(users: UserDirectory) -> None:
    users.put_rules("User:bob", rules())
    users.delete_user("bob", ROOT)
    users.create_user("bob", UserBody(password="p"), ROOT)
    assert users.rules_of("bob") is None
    users.delete_user("nobody", ROOT)  # as at RocketMQ


def test_rules_are_merged_by_resource_and_deleted_one_by_one(users: UserDirectory) -> None:
    users.put_rules("User:bob", rules("Topic:t", "Pub"))
    users.put_rules("User:bob", rules("Topic:t", "Sub", subject=None))
    users.put_rules("User:bob", rules("Group:g", "Sub", kind="default"))
    found = users.get_rules("User:bob")
    assert found is not None
    assert [(p["policyType"], [e["resource"] for e in p["entries"]]) for p in found["policies"]] == [
        ("Custom", ["Topic:t"]), ("Default", ["Group:g"])
    ]  # fmt: skip
    assert found["policies"][0]["entries"][0]["actions"] == ["Sub"]
    with pytest.raises(AccessRefused, match="The resource is null"):  # RocketMQ deletes all here
        users.delete_rules("User:bob", "Queue:x", None)
    users.delete_rules("User:bob", "Group:g", None)  # of Custom, where it is not
    assert users.get_rules("User:bob") == found
    users.delete_rules("User:bob", "Group:g", "Default")
    users.delete_rules("User:bob", "Topic:t", None)
    assert users.get_rules("User:bob") is None
    users.put_rules("User:bob", rules())
    users.delete_rules("User:bob", "", None)
    assert users.get_rules("User:bob") is None


def test_lists_are_filtered_as_rocketmq_filters_them(users: UserDirectory) -> None:
    users.put_rules("User:bob", rules("Topic:abc"))
    users.put_rules("User:root", rules("Group:g", subject="User:root"))
    assert [each["username"] for each in users.list_users("o")] == ["bob", "root"]
    assert [each["username"] for each in users.list_users("ob")] == ["bob"]
    assert [each["subject"] for each in users.list_rules("bo", None)] == ["User:bob"]
    assert [each["subject"] for each in users.list_rules(None, "Group")] == ["User:root"]
    assert [each["subject"] for each in users.list_rules(None, "oo")] == [
        "User:root"
    ]  # part of the key


def test_a_directory_is_copied_as_it_is(users: UserDirectory) -> None:
    users.put_rules("User:bob", rules("Topic:p*", "Pub", "Sub"))
    copy = UserDirectory()
    assert copy.adopt(users.to_json()) and not copy.adopt(users.to_json())
    assert copy.to_json() == users.to_json()
    for broken in ({"users": 7}, {"users": [{"username": "x"}]}, {"users": [{"username": "r", "password": "p"}], "acls":
                   [{"subject": "User:r", "policies": [{"entries": [{"resource": "x"}]}]}]}):  # fmt: skip
        with pytest.raises(ValueError):
            copy.adopt(broken)
    assert copy.to_json() == users.to_json()


def test_passwords_are_in_no_text_of_a_user() -> None:
    assert "rootpw12" not in f"{ROOT} {ROOT!r}"
