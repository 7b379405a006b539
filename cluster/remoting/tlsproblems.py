"""What a failed TLS handshake means, and what to do about it: OpenSSL's words with a sentence behind them."""

from __future__ import annotations

import ssl
from typing import Final

_UNTRUSTED: Final = (
    "nobody whom we trust has signed the peer's certificate: our trusted roots (tls.client.trustCertPath, "
    "for clients of ours tls.server.trustCertPath; --ca, `tls`) must hold its CA"
)
_OTHER_NAME: Final = (
    "the peer's certificate is for another address: put the one that it is reached by into its subjectAltName, "
    "DNS: for a name, IP: for a number"
)
#: by X509_V_ERR_*: what we found wrong with the peer's certificate
_FOUND: Final = {
    2: _UNTRUSTED,
    7: "the peer's certificate is signed by another CA of the same name: was the CA made anew? "
    + _UNTRUSTED,
    9: "the peer's certificate is not valid yet: compare the clocks",
    10: "the peer's certificate has expired: renew it there",
    18: _UNTRUSTED,
    19: _UNTRUSTED,
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    24: "a CA on the way to the peer's certificate is none: it lacks basicConstraints=CA:TRUE",
    26: "the peer's certificate is not for this: its extendedKeyUsage needs serverAuth for a server, clientAuth for "
    "who connects",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
_WANTED: Final = (
    "the peer wants a certificate of ours: set tls.client.certPath and tls.client.keyPath (--cert and --cert-key, or "
    "load_cert_chain() of `tls`)"
)
_NO_TLS: Final = (
    "the peer does not speak TLS here: set its tls.server.mode=enforcing, or tls.enable=false "
    "to do without"
)
#: by a part of OpenSSL's reason: mostly what the peer said of our certificate
_SAID: Final = (
    ("CERTIFICATE_REQUIRED", _WANTED),
    (
        "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "the peer showed no certificate, and must: tls.client.certPath there",
    ),
    (
        "ALERT_UNKNOWN_CA",
        "the peer does not trust who signed our certificate: its trusted roots must hold our CA",
    ),
    (
        "ALERT_DECRYPT_ERROR",
        "the peer trusts another CA of the same name as ours: was the CA made anew?",
    ),
    ("ALERT_CERTIFICATE_EXPIRED", "our certificate has expired: renew it here"),
    ("ALERT_CERTIFICATE_REVOKED", "the peer says that our certificate is revoked"),
    ("ALERT_CERTIFICATE_UNKNOWN", "the peer does not take our certificate: its log says why"),
    (
        "ALERT_BAD_CERTIFICATE",
        "the peer does not take our certificate, mostly for an address that is not in it",
    ),
    ("ALERT_UNSUPPORTED_CERTIFICATE", "our certificate is not for this: see its extendedKeyUsage"),
    ("WRONG_VERSION_NUMBER", _NO_TLS),
    ("HTTP_REQUEST", "a peer speaks HTTP here"),
    ("PROTOCOL_VERSION", "one of the two knows no TLS 1.2"),
    ("UNSUPPORTED_PROTOCOL", "one of the two knows no TLS 1.2"),
    (
        "HANDSHAKE_FAILURE",
        "the two have no cipher in common, or the peer wants a certificate of ours",
    ),
)

HUNG_UP: Final = (
    "it hung up during the TLS handshake: it may not speak TLS here (tls.server.mode there), "
    "or not take us"
)


def explained(problem: ssl.SSLError) -> str:
    """What OpenSSL says, and what to do about it where that is known."""
    text = str(problem)
    if isinstance(problem, ssl.SSLCertVerificationError):
        advice = _FOUND.get(problem.verify_code, "")
        text = f"certificate verify failed: {problem.verify_message}"
    else:
        reason = (problem.reason or "").upper()
        advice = next((advice for part, advice in _SAID if part in reason), "")
    return f"{text}; {advice}" if advice else text
