"""TLS between the socket and the frames, without I/O: ciphertext in, plaintext out, and back."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, cast

from tandemmq.cluster.remoting.errors import PeerBrokeProtocol, RemotingError
from tandemmq.cluster.remoting.tlsproblems import explained

CLIENT_HELLO: Final = 0x16
"""First byte of a TLS connection. No frame starts with it: its length would be above 350 MiB."""


class TlsMode(Enum):
    """What a listener does with TLS and with plain connections; RocketMQ's tls.server.mode."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"  # both: a migration aid
    ENFORCING = "enforcing"

    @classmethod
    def parse(cls, text: str) -> TlsMode:
        """A mode by RocketMQ's name or ours (off, required). Raises ValueError with the choices."""
        name = text.strip().lower()
        try:
            return cls({"off": "disabled", "required": "enforcing"}.get(name, name))
        except ValueError:
            raise ValueError(
                f"TLS mode {text!r} is none of disabled (off), permissive, enforcing (required)"
            ) from None


class ClientAuth(Enum):
    """Whether a listener asks clients for a certificate; RocketMQ's tls.server.need.client.auth."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


class TlsUnusable(RemotingError):
    """The configured key or certificate cannot be used. The text names the file."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a listener's key, certificate chain and trusted roots are: PEM files. Empty: none."""

    key_path: str = ""
    cert_path: str = ""
    key_password: str = ""
    trust_cert_path: str = ""
    client_auth: ClientAuth = ClientAuth.NONE


def server_context(files: TlsFiles, *, test_mode: bool = True) -> ssl.SSLContext | None:
    """What a listener encrypts with; None when no certificate is configured and test mode is off.

    test_mode   with no key or certificate configured, make a self-signed one that nobody can verify
    Reads and writes files, so run it in a thread. Raises TlsUnusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if files.key_path and files.cert_path:
        load_own(context, files.cert_path, files.key_path, files.key_password)
    elif not test_mode:
        return None
    else:
        _load_self_signed(context)
    if files.client_auth is not ClientAuth.NONE:
        required = files.client_auth is ClientAuth.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(files.trust_cert_path)
        except (OSError, ssl.SSLError) as problem:
            raise TlsUnusable(
                _unreadable("trusted certificates", files.trust_cert_path, problem)
            ) from problem
    return context


def _no_password() -> str:
    """Asked for only when the key is encrypted: an empty password fails, a prompt would hang."""
    return ""


def client_context(
    *,
    ca_path: str = "",
    cert_path: str = "",
    key_path: str = "",
    key_password: str = "",
    verify: bool = True,
) -> ssl.SSLContext:
    """What a client encrypts with.

    ca_path    trusted roots, PEM; empty means the system's
    cert_path  what to show to a server that asks for a certificate; key_path "": the key is in the same file
    verify     check the server's certificate and name; off only for test-mode servers
    Raises TlsUnusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if ca_path:
            context.load_verify_locations(ca_path)
        elif verify:
            context.load_default_certs()
    except (OSError, ssl.SSLError) as problem:
        raise TlsUnusable(_unreadable("trusted certificates", ca_path, problem)) from problem
    if cert_path:
        load_own(context, cert_path, key_path, key_password)
    return context


def load_own(
    context: ssl.SSLContext, cert_path: str, key_path: str = "", key_password: str = ""
) -> None:
    """Give a context its certificate, instead of the one it has. Raises TlsUnusable."""
    try:
        context.load_cert_chain(cert_path, key_path or None, key_password or _no_password)
    except (OSError, ssl.SSLError, ValueError) as problem:
        what = f"key {key_path} with certificate" if key_path else "key and certificate"
        raise TlsUnusable(_unreadable(what, cert_path, problem)) from problem


def _unreadable(what: str, path: str, problem: Exception) -> str:
    """Why a file cannot be used, and what to look at."""
    text = f"{what} {path}: {problem}"
    reason = getattr(problem, "reason", None) or ""
    if reason == "KEY_VALUES_MISMATCH":
        return f"{text}: the key belongs to another certificate"
    if isinstance(problem, ssl.SSLError) and ("PEM" in reason or reason == ""):
        return f"{text}: must be PEM, and a key's password must be right"
    if "DECRYPT" in reason:
        return f"{text}: the key's password is wrong, or missing"
    return text


def _load_self_signed(context: ssl.SSLContext) -> None:
    # imported here: only test mode needs it, and it costs every process start 60 ms and 10 MB
    from tandemmq.cluster.remoting.selfsigned import self_signed_pem

    key_pem, cert_pem = self_signed_pem()
    # the ssl module loads keys from files only; the directory is ours alone and gone at once
    with tempfile.TemporaryDirectory(prefix="tandem-tls-") as directory:
        path = os.path.join(directory, "test.pem")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key_pem + cert_pem)
        context.load_cert_chain(path)


class TlsSession:
    """One connection's TLS state; the owner moves the bytes to and from the socket.

    established   whether the handshake is done; what is written before waits
    ended         whether the peer said goodbye
    """

    __slots__ = ("_held", "_incoming", "_object", "_outgoing", "_read", "ended", "established")

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_name: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name
        )
        # with a buffer, read returns a count: the type stubs know only the other form
        self._read = cast(Callable[[int, memoryview], int], self._object.read)
        self._held: list[bytes] = []
        self.established = False
        self.ended = False

    def feed(self, ciphertext: memoryview) -> None:
        """Take what the socket received; the bytes are copied."""
        self._incoming.write(ciphertext)

    def shake_hands(self) -> bool:
        """Go as far as the received bytes allow; whether it is done. Raises PeerBrokeProtocol."""
        if not self.established:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLError as problem:
                raise PeerBrokeProtocol(f"TLS handshake failed: {explained(problem)}") from None
            self.established = True
            for plaintext in self._held:
                self._object.write(plaintext)
            self._held.clear()
        return True

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt into `buffer` as much as is there; how many bytes. Raises PeerBrokeProtocol."""
        filled = 0
        while filled < len(buffer):
            try:
                count = self._read(len(buffer) - filled, buffer[filled:])
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                self.ended = True
                break
            except ssl.SSLError as problem:
                raise PeerBrokeProtocol(f"TLS ended: {explained(problem)}") from None
            if not count:
                self.ended = True
                break
            filled += count
        return filled

    def write(self, plaintext: bytes) -> None:
        """Encrypt, or keep until the handshake is done."""
        if self.established:
            self._object.write(plaintext)
        else:
            self._held.append(plaintext)

    def say_goodbye(self) -> None:
        """Queue the closing alert."""
        if self.established:
            try:
                self._object.unwrap()
            except ssl.SSLError:
                return  # the peer's alert is not awaited: the socket closes anyway

    def take_output(self) -> bytes:
        """Ciphertext to send now; b"" when there is none."""
        return self._outgoing.read()
