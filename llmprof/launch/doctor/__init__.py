"""The doctor: whether this machine can run an experiment."""
