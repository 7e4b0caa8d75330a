"""HTTP plumbing of every request: access, limits, threads, errors, and the process that answers it."""
