"""The small tables beside the log: topics, groups, progress, deletions, and how slaves copy them.

Every table is a SavedFile with checks of its own on what is read; what follows from the log obeys resting.py.
"""
