"""`tandem doctor`: what looks wrong on this machine and in a running cluster, and what to do about it."""
