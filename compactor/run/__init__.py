"""What one run decides and carries from step to step. It executes nothing: two_phase.py calls it in order."""
