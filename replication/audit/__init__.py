"""Finds, names and explains every difference between replicas of one broker's log."""
