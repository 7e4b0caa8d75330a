"""Verification of a compacted ledger against raw and against itself."""
