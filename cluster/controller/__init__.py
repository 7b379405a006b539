"""The controller: which replica of each group is master, in which epoch, and who holds everything confirmed."""

from __future__ import annotations

from tandemmq.cluster.controller.config import KEYS, ControllerConfig
from tandemmq.cluster.controller.serving import serve_controller, serving_controller

__all__ = ["KEYS", "ControllerConfig", "serve_controller", "serving_controller"]
