"""Judges the history of a run, a file: checkers C-1 to C-20, streaming, each with an id and what it saw."""
