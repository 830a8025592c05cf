"""Stand-alone scripts of experiments, which run with the Python that has PyTorch and do not
import llmprof.
"""
