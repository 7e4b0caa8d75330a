"""Work of a service besides requests."""
