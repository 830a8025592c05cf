"""Hardware metrics of Nsight Compute: the command that records them, the join with a timeline,
bounds and stalls.
"""
