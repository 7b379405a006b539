"""What handlers may ask for by its type."""

from __future__ import annotations

from typing import Annotated

from faststream._internal.context import Context

from tandemmq.faststream.messages import TandemStreamMessage

TandemMessage = Annotated[TandemStreamMessage, Context("message")]
