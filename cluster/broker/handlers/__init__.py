"""Handlers of the broker's requests, one module per family."""
