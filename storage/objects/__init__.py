"""Object stores: where ledgers, parts, indexes and manifests are as immutable, named bytes."""
