"""Mirrors of Kafka's topics: connections to its brokers, records as entries, and the tasks of a service."""
