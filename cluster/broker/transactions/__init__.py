"""Transactions: half messages wait in a topic of the broker's own until their producers say what becomes of them.

halves.py decides (no I/O, no clock), records.py knows the bytes, transactions.py puts and asks. What a new master
knows of transactions it reads from the log, so nothing but the log and one position is kept.
"""
