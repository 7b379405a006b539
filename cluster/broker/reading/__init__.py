"""What consumers need besides messages: held pulls, filters, ordered locks, members and what they subscribe to.

Reading itself is storage's; the requests are in handlers/. pullpath.py has a compiled twin, _pullpath.pyx: change both;
tests/cluster/broker/test_pullpath.py compares them.
"""
