"""Object stores: where ledgers, parts, indexes and manifests lie as immutable, named bytes."""
