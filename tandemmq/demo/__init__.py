"""`make demo`: a replicated cluster under traffic, a master killed, every message counted."""
