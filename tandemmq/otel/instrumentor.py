"""Switches spans and metrics on for every producer and consumer of the process, and off again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from tandemmq.cluster.client import Producer, PullConsumer, PushConsumer
from tandemmq.otel.consuming import ReceiveSpans
from tandemmq.otel.producing import SendSpans
from tandemmq.otel.recording import Recording

_SENDS: Final = ("send", "send_batch", "send_oneway", "request", "transaction")


class TandemInstrumentor(BaseInstrumentor):
    """OpenTelemetry's way to switch an instrumentation on: instrument() and uninstrument().

    instrument(tracer_provider=..., meter_provider=...) takes others than the process's own. Producers that are at work
    go on with spans; consumers must be made after it.

    Example:
        TandemInstrumentor().instrument()
        async with Producer("shop") as producer:
            await producer.send(Message("Orders", b"17"))
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """What is instrumented: this package, which is here."""
        return ("tandemmq >= 0.1",)

    def _instrument(self, **kwargs: Any) -> None:
        recording = Recording(kwargs.get("tracer_provider"), kwargs.get("meter_provider"))
        sends, receives = SendSpans(recording), ReceiveSpans(recording)
        self._before: list[tuple[type, str, Any]] = []
        for name in _SENDS:
            self._wrap(Producer, name, getattr(sends, name))
        self._wrap(PushConsumer, "__init__", receives.made)
        self._wrap(PullConsumer, "poll", receives.poll)
        self._wrap(PullConsumer, "__anext__", receives.anext)

    def _wrap(self, kind: type, name: str, wrap: Any) -> None:
        method = getattr(kind, name)
        self._before.append((kind, name, method))
        setattr(kind, name, wrap(method))

    def _uninstrument(self, **kwargs: Any) -> None:
        for kind, name, method in self._before:
            setattr(kind, name, method)
        self._before = []
