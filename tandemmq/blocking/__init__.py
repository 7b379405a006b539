"""The client for scripts and notebooks: calls return when the work is done.

    from tandemmq.blocking import Producer, consume

A thin layer over the asyncio client, whose event loop runs in a thread of its own: so it works inside a running loop,
too, as in a notebook. In asyncio programs use tandemmq.Producer and its like: these here would hold everybody up.
"""

from __future__ import annotations

from tandemmq.blocking.consuming import consume
from tandemmq.blocking.producer import Producer

__all__ = ["Producer", "consume"]
