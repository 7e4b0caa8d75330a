"""What a service does besides requests."""
