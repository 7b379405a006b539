"""`tandem backup` and `tandem restore`: a broker's store, copied while it runs, and made into a store elsewhere.

Cores: manifest (what an increment says), chain (which increments belong together, what comes next), tables (what
progress is worth at an earlier point). Shells: source (a broker's HTTP port or a stopped store), places and arrow
(where backups lie), shelf (what is there), copying, verifying, staging, restoring.
"""
