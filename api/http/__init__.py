"""What is true of every request: access, limits, threads, errors, and which process answers it."""
