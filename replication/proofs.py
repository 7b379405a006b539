"""Who may talk to whom on our extension of the stream: cluster, group, and proof of a shared secret. Core.

Each side proves that it knows the secret by an HMAC over what it says and a number the other side has just drawn, so a
recorded proof is worth nothing. Without a secret nothing is proved.
"""

from __future__ import annotations

import hashlib
import hmac

from msgspec.structs import replace

from tandemmq.replication.frames import (
    NO_PROOF,
    VERSION,
    Challenge,
    Hello,
    Welcome,
    hello_parts,
    welcome_parts,
)


def slave_proof(secret: bytes, challenge: Challenge, hello: Hello) -> bytes:
    """What a slave that knows the secret answers to this challenge. Covers everything the hello says."""
    if not secret:
        return NO_PROOF
    said = b"slave" + challenge.nonce + b"".join(hello_parts(replace(hello, proof=NO_PROOF)))
    return hmac.digest(secret, said, hashlib.sha256)


def master_proof(secret: bytes, hello: Hello, welcome: Welcome) -> bytes:
    """What a master that knows the secret adds to its welcome."""
    if not secret:
        return NO_PROOF
    said = b"master" + hello.nonce + b"".join(welcome_parts(replace(welcome, proof=NO_PROOF)))
    return hmac.digest(secret, said, hashlib.sha256)


def refuse_hello(
    hello: Hello, challenge: Challenge, *, cluster: str, group: str, secret: bytes
) -> str | None:
    """Why this slave is not let in; None when it is. The epoch and position are MasterCore's to judge."""
    if hello.version != VERSION:
        return f"extension version {hello.version}, ours is {VERSION}"
    if (hello.cluster, hello.group) != (cluster, group):
        return f"belongs to {hello.cluster}/{hello.group}, this is {cluster}/{group}"
    if not hmac.compare_digest(hello.proof, slave_proof(secret, challenge, hello)):
        return "wrong secret"
    return None


def refuse_welcome(welcome: Welcome, hello: Hello, *, secret: bytes) -> str | None:
    """Why this master is not to be followed; None when it is."""
    if not hmac.compare_digest(welcome.proof, master_proof(secret, hello, welcome)):
        return "wrong secret"
    return None
