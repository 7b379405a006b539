"""What operators ask and order, as typed methods of Admin: the calls that mqadmin makes."""
