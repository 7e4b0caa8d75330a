"""Routes of policies of topics, namespaces and the broker."""
