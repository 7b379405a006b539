"""Frames of a whole conversation, for tests that look at what was sent: processes split where they read."""

from __future__ import annotations

from tandemmq.cluster.remoting.frame import DEFAULT_LIMITS, Buffer, FrameLimits, split


class FrameSplitter:
    """Frames out of a stream that arrives in arbitrary pieces; holds no more than was received."""

    __slots__ = ("_limits", "_pending")

    def __init__(self, limits: FrameLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of the frame that has begun and is not whole yet."""
        return len(self._pending)

    def feed(self, chunk: Buffer) -> list[bytes]:
        """The frames that `chunk` completes, length words included. Raises PeerBrokeProtocol."""
        self._pending += memoryview(chunk)
        frames, consumed = split(self._pending, 0, len(self._pending), self._limits)
        whole = [bytes(self._pending[start:end]) for start, end in frames]
        del self._pending[:consumed]
        return whole
