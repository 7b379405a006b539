"""What people and programs ask a cluster over HTTP: admin commands, messages, what changes; and OpenAPI of it."""

from __future__ import annotations

from tandemmq.plane.reach import Reach
from tandemmq.plane.rooms import plane_room

__all__ = ["Reach", "plane_room"]
