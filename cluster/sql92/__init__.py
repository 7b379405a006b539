"""SQL92 filters: an expression over a message's properties, judged as RocketMQ's rocketmq-filter judges it.

tokens reads words, grammar what they say, terms makes functions of it, numerals reads numbers as Java does. No I/O.
What is asked of it from outside is `grammar.compile_expression`.
"""
