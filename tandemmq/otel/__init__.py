"""OpenTelemetry: spans and metrics of sends and consumption, and trace contexts in messages.

    from tandemmq.otel import TandemInstrumentor

    TandemInstrumentor().instrument()      # once, before producers and consumers are made

or nothing of it in the program, started by `opentelemetry-instrument`. Needs the extra `otel`; docs/howto/traces.md.
"""

from __future__ import annotations

from tandemmq.otel.context import context_from, links_to, with_context
from tandemmq.otel.instrumentor import TandemInstrumentor

__all__ = ["TandemInstrumentor", "context_from", "links_to", "with_context"]
