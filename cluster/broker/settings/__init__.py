"""What an operator may set: the settings, what RocketMQ has beside them, and what stops a start.

A new setting goes to config.py (ours, with unit and RocketMQ's name), known_keys.py (accepted, no effect) or
unserved.py (a promise nobody here keeps: refused); one that may change while the broker runs stands in changing.py, too.
"""
