"""Access keys: the signature that brokers with access control check on every request. No I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandemmq.cluster.access.signature import sign
from tandemmq.cluster.remoting import Command

ACCESS_KEY_VARIABLE: Final = "TANDEM_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "TANDEM_SECRET_KEY"
SECURITY_TOKEN_VARIABLE: Final = "TANDEM_SECURITY_TOKEN"
_FILE_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are to brokers with access control (RocketMQ's ACL 1.0 and 2.0).

    access_key      name of the account; travels in clear text
    secret_key      signs every request, never travels
    security_token  "" or a token of a temporary account

    Raises ValueError when a key is empty.

    Example:
        config = ClientConfig("10.0.0.1:9876", credentials=Credentials("shop", "12345678"))
        async with Producer("PG", config=config) as producer: ...
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise ValueError("access_key and secret_key must both be given")

    def sign(self, command: Command) -> None:
        """Add AccessKey and Signature: HMAC-SHA1 over the values of all fields, then the body.

        Fields are taken in the order of their names. Source: RocketMQ's AclClientRPCHook.
        """
        sign(command, self.access_key, self.secret_key, self.security_token)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Credentials | None:
        """What TANDEM_ACCESS_KEY, TANDEM_SECRET_KEY and TANDEM_SECURITY_TOKEN say; None where nothing is set.

        environment   instead of this process's

        Raises ValueError when only one of the first two is set.

        Example: config = ClientConfig(credentials=Credentials.from_environment())
        """
        environment = os.environ if environment is None else environment
        access = environment.get(ACCESS_KEY_VARIABLE, "")
        secret = environment.get(SECRET_KEY_VARIABLE, "")
        if bool(access) != bool(secret):
            raise ValueError(
                f"set both {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}, or neither"
            )
        if not access:
            return None
        return cls(access, secret, environment.get(SECURITY_TOKEN_VARIABLE, ""))

    @classmethod
    def from_file(cls, path: str | Path) -> Credentials:
        """What a file says: lines `accessKey: name` and `secretKey: key`, as in RocketMQ's conf/tools.yml, or with `=`,
        as in its key file.

        Raises OSError, and ValueError when a key is missing. Neither has a secret in its text.

        Example: config = ClientConfig(credentials=Credentials.from_file("/etc/shop/tools.yml"))
        """
        with Path(path).open("rb") as file:
            text = file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
        found: dict[str, str] = {}
        for line in text.splitlines():
            name, *value = re.split("[:=]", line, maxsplit=1)
            if value and not line.lstrip().startswith("#"):
                found[name.strip().lower()] = value[0].strip().strip("'\"")
        try:
            return cls(
                found.get("accesskey", ""),
                found.get("secretkey", ""),
                found.get("securitytoken", ""),
            )
        except ValueError:
            raise ValueError(f"{path} must hold accessKey and secretKey") from None
