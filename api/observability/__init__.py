"""Log lines, metrics, and what must not be seen in either."""
