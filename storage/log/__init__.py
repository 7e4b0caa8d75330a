"""The writable end of a topic: entries in Pulsar's encoding, in append-only segments on local disk (docs/format.md)."""
