"""The Iceberg table of a compacted ledger: metadata beside the parts, which stay as they are."""
