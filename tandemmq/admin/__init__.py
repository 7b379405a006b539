"""`tandem admin`: mqadmin's commands, by the things they are about. A new one is a Command in one of these tables."""
