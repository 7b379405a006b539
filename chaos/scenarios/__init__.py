"""One command that breaks a cluster: scenarios, their schedules, runs that are judged, and a report of each."""
