"""What is known of the cluster at one moment, what is wrong with it, and how it came there: values, no I/O."""
