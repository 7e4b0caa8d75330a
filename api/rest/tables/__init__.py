"""Iceberg's REST catalog."""
