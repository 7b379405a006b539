"""What is published: wheels, built and tried."""
