"""Who signs requests, and what a signed one proves: HMAC-SHA1 over the values of its fields and its body. Core.

The code, the names of the fields and the borders between values are not signed, and there is no time in it: who hears
a signed request may send it again. Only TLS helps against that. Source: RocketMQ's AclUtils and AclSigner.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

from tandemmq.cluster.remoting.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
#: ours: the code, among what is signed. Our own processes send it, and what hands out passwords asks for it
SIGNED_CODE: Final = "SignedCode"
SECRET_FIELDS: Final = (SIGNATURE, SECURITY_TOKEN)

#: fields that Java clients with a zone add behind the signature, and one that clients up to 4.9 leave out of it
_ADDED_LATE: Final = ("__ZONE_NAME", "__ZONE_MODE", "_UNIQUE_KEY_QUERY")

Body = bytes | memoryview | None


class AccessUser(NamedTuple):
    """Somebody who signs requests. A Super user may do everything."""

    name: str
    password: str
    is_super: bool = False
    is_enabled: bool = True

    def to_json(self) -> dict[str, str]:
        return {
            "password": self.password,
            "userStatus": "enable" if self.is_enabled else "disable",
            "userType": "Super" if self.is_super else "Normal",
            "username": self.name,
        }

    def __repr__(self) -> str:
        return f"AccessUser({self.name!r})"  # never the password


def signature_of(ext: Mapping[str, str], body: Body, secret_key: str) -> str:
    """The tag of a request: Base64 of HMAC-SHA1 over the values in the order of their names, then the body.

    Names are ordered as Java orders them, by UTF-16 unit; what UTF-8 cannot say becomes "?", as in Java.
    """
    names = [name for name in ext if name != SIGNATURE]
    names.sort(key=None if all(map(str.isascii, names)) else _utf16)
    said = "".join([ext[name] for name in names]).encode("utf-8", "replace")
    if body:
        said += body
    tag = hmac.digest(secret_key.encode("utf-8", "replace"), said, hashlib.sha1)
    return base64.b64encode(tag).decode("ascii")


def is_signed(ext: Mapping[str, str], body: Body, secret_key: str) -> bool:
    """Whether a request carries the signature that this key makes. Takes the same time wherever they differ."""
    said = ext.get(SIGNATURE, "").encode("utf-8", "replace")
    if hmac.compare_digest(said, signature_of(ext, body, secret_key).encode()):
        return True
    late = [name for name in _ADDED_LATE if name in ext]
    if not late:
        return False
    without = {name: value for name, value in ext.items() if name not in late}
    return hmac.compare_digest(said, signature_of(without, body, secret_key).encode())


def sign(command: Command, access_key: str, secret_key: str, security_token: str = "") -> None:
    """Add AccessKey and Signature, in place of those that are there."""
    fields = dict(command.ext or {})
    fields.pop(SIGNATURE, None)
    fields[ACCESS_KEY] = access_key
    if security_token:
        fields[SECURITY_TOKEN] = security_token
    fields[SIGNATURE] = signature_of(fields, command.body, secret_key)
    command.ext = fields


def sign_own(command: Command, access_key: str, secret_key: str, security_token: str = "") -> None:
    """As sign(), with the code among the signed fields: what we ask a peer is of no use for another request."""
    command.ext = {**(command.ext or {}), SIGNED_CODE: f"{int(command.code)}."}
    sign(command, access_key, secret_key, security_token)


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
