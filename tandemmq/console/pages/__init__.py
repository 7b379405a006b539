"""HTML of what is known: functions from values to Html. No I/O."""
