"""Who showed the token: cookies, the word of a form, and guessing."""

from __future__ import annotations

import itertools

from tandemmq.console import sessions
from tandemmq.console.sessions import Sessions, carries

TOKEN = "a-token-of-more-than-16-letters"
PEER = "10.0.0.7"


def made(token: str = TOKEN) -> Sessions:
    return Sessions(token, map(str, itertools.count(1)).__next__)


def test_only_the_token_makes_a_session_and_it_ends() -> None:
    known = made()
    assert known.enter(PEER, "wrong", 0) is None and known.enter(PEER, "", 0) is None
    session = known.enter(PEER, f" {TOKEN}\n", 0)
    assert session is not None and known.of(session.key, 1) == session
    assert known.of(session.key, sessions.LASTS_S + 1) is None and known.of(session.key, 1) is None
    assert known.of(None, 0) is None and known.of("guessed", 0) is None


def test_without_a_token_nobody_enters() -> None:
    known = made("")
    assert known.enter(PEER, "", 0) is None and not known.can_enter


def test_who_leaves_is_not_known_any_more() -> None:
    known = made()
    session = known.enter(PEER, TOKEN, 0)
    assert session is not None
    known.leave(session.key)
    known.leave(None)
    assert known.of(session.key, 1) is None


def test_a_form_needs_the_word_of_its_own_session() -> None:
    known = made()
    one, other = known.enter(PEER, TOKEN, 0), known.enter(PEER, TOKEN, 0)
    assert one is not None and other is not None
    assert carries(one, one.form_word)
    assert not carries(one, other.form_word) and not carries(one, "") and not carries(one, "\udcff")


def test_guessing_is_slow_and_sessions_are_bounded() -> None:
    known = made()
    for _ in range(sessions.GUESSES_MAX):
        assert known.enter(PEER, "wrong", 100) is None
    assert known.must_wait_s(PEER, 101) > 0
    assert known.enter(PEER, TOKEN, 101) is None  # not even the right one: else guessing goes on
    assert known.must_wait_s(PEER, 101 + sessions.PAUSE_S + 1) == 0
    assert known.enter(PEER, TOKEN, 101 + sessions.PAUSE_S + 1) is not None
    first = known.enter(PEER, TOKEN, 200)
    assert first is not None
    for _ in range(sessions.SESSIONS_MAX):
        known.enter(PEER, TOKEN, 200)
    assert known.of(first.key, 201) is None


def test_who_guesses_keeps_nobody_else_out_and_is_forgotten_at_last() -> None:
    known = made()
    for _ in range(sessions.GUESSES_MAX):
        known.enter(PEER, "wrong", 100)
    assert known.must_wait_s(PEER, 101) > 0
    assert known.enter("10.0.0.8", TOKEN, 101) is not None
    for number in range(sessions.PEERS_MAX):
        known.enter(f"peer {number}", "wrong", 102)
    assert known.must_wait_s(PEER, 102) == 0  # so many others came that it was forgotten
