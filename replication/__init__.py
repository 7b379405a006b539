"""One broker on several disks: master, slaves, epochs and failover. Grows with the replication milestone."""
