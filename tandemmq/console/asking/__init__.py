"""What asks the cluster: collectors at a bounded pace for all viewers together, and what one viewer asks for."""
