"""Breaking it on purpose: faults, workloads, histories and the checkers that judge them."""
