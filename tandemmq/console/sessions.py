"""Who showed the token: sessions behind a cookie, and the word that a form of theirs must carry. No I/O.

A browser cannot send `Authorization` with a form, so whoever shows the token once gets a random cookie instead, which
scripts cannot read and which no other site's page makes the browser send (SameSite=Strict). What acts also carries
the session's form word, which only a page of ours knows.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

COOKIE: Final = "tandem_console"
SESSIONS_MAX: Final = 256  # further ones push out the oldest
LASTS_S: Final = 12 * 3600.0
GUESSES_MAX: Final = 10  # wrong tokens in a row, of one peer, before it must wait
PEERS_MAX: Final = 1_024  # whose guesses are counted; further ones push out the oldest
PAUSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Session:
    """key: the cookie. form_word: what its forms carry. ends_s: of the monotonic clock."""

    key: str
    form_word: str
    ends_s: float


class Sessions:
    """Sessions by their cookies.

    token  what must be shown; "" when nobody may enter
    draw   makes an unguessable word, e.g. secrets.token_urlsafe
    """

    def __init__(self, token: str, draw: Callable[[], str]) -> None:
        self._token = token.encode()
        self._draw = draw
        self._known: dict[str, Session] = {}
        self._wrong: dict[str, tuple[int, float]] = {}  # by peer: how many, and when the last one

    @property
    def can_enter(self) -> bool:
        """Whether there is a token at all."""
        return bool(self._token)

    def must_wait_s(self, peer: str, now_s: float) -> float:
        """How long this peer may not try: after several wrong tokens guessing is slow. Others do not wait for it."""
        wrong, last_s = self._wrong.get(peer, (0, 0.0))
        return max(0.0, last_s + PAUSE_S - now_s) if wrong >= GUESSES_MAX else 0.0

    def enter(self, peer: str, shown: str, now_s: float) -> Session | None:
        """A new session for who shows the token, None for who does not."""
        given = shown.strip().encode("utf-8", "surrogateescape")
        if self.must_wait_s(peer, now_s):
            return None  # and the wait does not begin anew: else who guesses is never let in again
        if not self._token or not hmac.compare_digest(given, self._token):
            wrong, _ = self._wrong.pop(peer, (0, 0.0))
            while len(self._wrong) >= PEERS_MAX:
                del self._wrong[next(iter(self._wrong))]
            self._wrong[peer] = wrong + 1, now_s
            return None
        self._wrong.pop(peer, None)
        while len(self._known) >= SESSIONS_MAX:
            del self._known[next(iter(self._known))]
        session = Session(self._draw(), self._draw(), now_s + LASTS_S)
        self._known[session.key] = session
        return session

    def of(self, key: str | None, now_s: float) -> Session | None:
        """The session of a cookie, None without one or when it is over."""
        session = self._known.get(key or "")
        if session is not None and session.ends_s <= now_s:
            del self._known[session.key]
            return None
        return session

    def leave(self, key: str | None) -> None:
        """End a session; nothing happens when there is none."""
        self._known.pop(key or "", None)


def carries(session: Session, word: str) -> bool:
    """Whether a form came from a page of this session."""
    return hmac.compare_digest(word.encode("utf-8", "surrogateescape"), session.form_word.encode())
