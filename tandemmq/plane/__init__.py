"""What people and programs ask a cluster over HTTP: admin commands, messages, what changes; and OpenAPI of it."""
