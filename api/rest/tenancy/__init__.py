"""Routes of tenants, namespaces and permissions."""
