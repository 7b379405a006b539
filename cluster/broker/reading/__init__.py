"""What consumers need besides messages: held pulls, filters, ordered locks, members and what they subscribe to.

Reading itself is storage's; the requests are in handlers/.
"""
