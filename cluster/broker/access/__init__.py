"""Who may ask this broker what: the users that it keeps, the files of accounts that it watches, and the one gate.

Decisions are in tandemmq.cluster.access. A new request code needs its row there (needs.py), and nothing here.
"""
