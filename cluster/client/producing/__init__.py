"""From a Message to a SendResult: which queue, how many attempts, and sends under way.

A change to how frames of sends are made touches fast.py and its twin _fast.pyx as well.
"""
