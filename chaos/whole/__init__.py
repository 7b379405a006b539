"""A whole cluster as it ships, in one process: the servers' and clients' own main coroutines, run on a seeded clock,
network and disk. What a seed does, it does again. `loop.py`, `wires.py` and `calls.py` are what they run on instead of
asyncio's loop, the kernel's sockets and its files; nothing of the cluster itself may be written again here."""
