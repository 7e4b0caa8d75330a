"""Kafka's record batches, as segment files and answers to Fetch hold them: framing, checksums, records as Arrow."""
