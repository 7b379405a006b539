"""A whole cluster in one process under a seeded clock, network and disk: the cores of replication, nothing else."""
