"""Scheduling of compactions: backlog, due topics, leadership, workers."""
