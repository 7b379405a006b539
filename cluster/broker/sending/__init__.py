"""From a send to its answer: admission, the short path, delay levels, and answers that wait for disk and slaves.

sendpath.py has a compiled twin, _sendpath.pyx: change both; tests/cluster/broker/test_sendpath_twins.py compares them.
"""
