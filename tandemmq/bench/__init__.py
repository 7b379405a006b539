"""`python -m tandemmq.bench`: what your own cluster does with the client that your programs use."""
