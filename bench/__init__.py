"""Measures the broker beside an echo server and Apache RocketMQ: `python -m bench`."""
