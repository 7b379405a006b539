"""What a message costs, in instructions: the same number on a busy machine and an idle one.

`python -m bench.gate` counts the instructions that the broker spends per message of the main loads, by stage, and holds
them against bench/gate/figures.json; more than a tenth above fails, naming the stage that grew. Valgrind counts; the
kernel's own work is not in it. A change that is worth its cost records the new figures with --record.
"""
