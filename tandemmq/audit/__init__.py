"""`tandem audit`: its options and output; what is compared, and how, is in tandemmq.replication.audit."""
