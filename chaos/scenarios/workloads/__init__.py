"""Workloads beside a run's own traffic, each of one kind of message or consumer, through our client; a scenario, or
`--workload`, chooses them (tandemmq.chaos.scenarios.workloads.chosen)."""
