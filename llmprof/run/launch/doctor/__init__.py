"""The doctor: checks whether this machine can run an experiment."""
