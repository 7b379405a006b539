"""Settings of a broker's access control that other processes do not have: rights, and accounts of files (1.0)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tandemmq.cluster.access.startup import AccessConfig
from tandemmq.cluster.config import ConfigError, key_of
from tandemmq.cluster.remoting.codes import RequestCode
from tandemmq.storage.settings import ours, setting

log = logging.getLogger(__name__)

_AUTH: Final = "org.apache.rocketmq.auth."
#: what each of RocketMQ's class names may be; the same is done for all of them
_CLASSES: Final[Mapping[str, tuple[str, ...]]] = {
    "authentication_provider": ("authentication.provider.DefaultAuthenticationProvider",),
    "authorization_provider": ("authorization.provider.DefaultAuthorizationProvider",),
    "authentication_users": ("authentication.provider.LocalAuthenticationMetadataProvider",),
    "authorization_rules": ("authorization.provider.LocalAuthorizationMetadataProvider",),
    "authentication_strategy": (
        "authentication.strategy.StatelessAuthenticationStrategy",
        "authentication.strategy.StatefulAuthenticationStrategy",
    ),
    "authorization_strategy": (
        "authorization.strategy.StatelessAuthorizationStrategy",
        "authorization.strategy.StatefulAuthorizationStrategy",
    ),
}

#: what no white list opens: it would open everything else
_NEVER_WHITE: Final = frozenset(
    {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG}
) | {code for code in RequestCode if "_ACL" in code.name or code.name.startswith("AUTH_")}

_Codes = Annotated[str, Meta(pattern=r"^[0-9,\s]*$")]


class RightsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of who signed.

    plain        accounts of plain_acl.yml and conf/acl/*.yml are asked for (ACL 1.0)
    plain_file   where plain_acl.yml is; the files of 1.0's directory are in acl/ beside it
    unsigned     request codes, with commas, that need no signature
    without_rules  request codes that need no rules
    migrated     at each start users and rules are made from the accounts of 1.0
    """

    plain: bool = setting("aclEnable", False)
    plain_file: str = ours("aclFile", "")  # RocketMQ's is -Drocketmq.acl.plain.file
    authorization: bool = setting("authorizationEnabled", False)
    unsigned: _Codes = setting("authenticationWhitelist", "")
    without_rules: _Codes = setting("authorizationWhitelist", "")
    migrated: bool = setting("migrateAuthFromV1Enabled", False)
    authentication_provider: str = setting("authenticationProvider", "")
    authorization_provider: str = setting("authorizationProvider", "")
    authentication_users: str = setting("authenticationMetadataProvider", "")
    authorization_rules: str = setting("authorizationMetadataProvider", "")
    authentication_strategy: str = setting("authenticationStrategy", "")
    authorization_strategy: str = setting("authorizationStrategy", "")

    @property
    def unsigned_codes(self) -> frozenset[int]:
        return _codes(self.unsigned)

    @property
    def codes_without_rules(self) -> frozenset[int]:
        return _codes(self.without_rules)

    @property
    def plain_path(self) -> Path:
        return Path(self.plain_file)


def _codes(text: str) -> frozenset[int]:
    return frozenset(int(part) for part in text.split(",") if part.strip())


def with_plain_file(
    given: Mapping[str, str], file: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """The settings with aclFile in full: below RocketMQ's home, or beside the settings file when that is in a conf."""
    found = dict(given)
    home = given.get("rocketmqHome", "").strip() or environment.get("ROCKETMQ_HOME", "")
    named = given.get("aclFile", "").strip() or "conf/plain_acl.yml"
    if not home and file:
        directory = Path(file).resolve().parent
        home = str(directory.parent if directory.name == "conf" else directory)
    if home:
        found["aclFile"] = str(Path(home) / named)
    return found


def check_access(access: AccessConfig, rights: RightsConfig, *, replicated: bool) -> None:
    """Refuse access control that would not keep anybody out, or would keep replicas out. Raises ConfigError.

    replicated   the broker has peers that it asks, and that ask it
    """
    if rights.authorization and not access.authentication:
        raise ConfigError(
            "authorizationEnabled", "true",
            "needs authenticationEnabled=true: without a signature anybody may give any name",
        )  # fmt: skip
    for key, codes in (
        ("authenticationWhitelist", rights.unsigned_codes),
        ("authorizationWhitelist", rights.codes_without_rules),
    ):
        if bad := sorted(codes & _NEVER_WHITE):
            raise ConfigError(
                key, ",".join(map(str, bad)), "may not name requests that change settings or users"
            )
    for field, allowed in _CLASSES.items():
        key, name = key_of(RightsConfig, field), getattr(rights, field)
        if name and name.removeprefix(_AUTH) not in allowed:
            words = " or ".join(_AUTH + each for each in allowed)
            raise ConfigError(key, name, f"must be {words}, or not be given")
        if "Stateful" in name:
            log.warning("%s: nothing is remembered by connection, each request is judged", key)
    if rights.plain and not Path(rights.plain_file).is_absolute():
        raise ConfigError(
            "aclFile", rights.plain_file, "give the whole path, or rocketmqHome: aclEnable needs it"
        )
    if access.authentication and replicated and access.key_and_secret is None:
        raise ConfigError(
            "innerClientAuthenticationCredentials", "",
            "must be given: replicas ask each other, and authenticationEnabled=true refuses what is not signed",
        )  # fmt: skip
    for warning in access.warnings():
        log.warning("insecure: %s", warning)
