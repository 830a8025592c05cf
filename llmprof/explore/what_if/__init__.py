"""Explorer of what would be gained: changes with sliders, and the step time that a replay
predicts for them.
"""
