"""Explorer of the whole trace over time."""
