"""Access keys: the signature that brokers with access control check on every request. No I/O."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field

from tandemmq.cluster.remoting import Command


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
        fields = dict(command.ext or {})
        fields.pop("Signature", None)
        fields["AccessKey"] = self.access_key
        if self.security_token:
            fields["SecurityToken"] = self.security_token
        signed = "".join(fields[name] for name in sorted(fields)).encode()
        digest = hmac.new(self.secret_key.encode(), signed, hashlib.sha1)
        if command.body is not None:
            digest.update(command.body)
        fields["Signature"] = base64.b64encode(digest.digest()).decode()
        command.ext = fields
