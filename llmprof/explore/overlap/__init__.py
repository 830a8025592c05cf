"""Explorer of overlap: steps and lanes."""
