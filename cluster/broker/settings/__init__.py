"""What an operator may set: the settings, what RocketMQ has beside them, and what stops a start.

A new setting goes to config.py (ours, with unit and RocketMQ's name), known_keys.py (accepted, no effect) or
unserved.py (a promise nobody here keeps: refused); what may change while the broker runs is in changing.py, too.
"""
