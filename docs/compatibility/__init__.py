"""What we answer beside what RocketMQ 5.3.3 answers: writes docs/compatibility.md by running both.

    .venv/bin/python -m docs.compatibility           # run both, write the page; needs a JDK and Maven
    .venv/bin/python -m docs.compatibility --check   # run both, exit 1 when the page says something else

Every request code is asked of our servers and of RocketMQ's by one script (`messages.py`, `tables.py`, `brokers.py`,
`names.py`, `controllers.py`), every command of mqadmin is run against both (`commands.py`). What differs has its reason
in `reasons.py`, written by hand: a difference without a reason fails the run, and so does a reason without a
difference.
"""
