"""Decisions and data of one run, in the order in which two_phase.py calls them. No module here executes tasks."""
