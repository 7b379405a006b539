"""Reading in a group: membership, pulls, caches, listeners, and what is committed.

consumer.py (push) and pull_consumer.py are the two faces; the rest is shared by both or part of one of them.
"""
