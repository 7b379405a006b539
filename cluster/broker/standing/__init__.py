"""What this broker is in its group, and who decides it: settings (classic) or a controller (replica groups).

Roles, epochs, leases and the log's cuts at a change of role belong here; what a role means for a request is
asked of standing.py and nowhere else.
"""
