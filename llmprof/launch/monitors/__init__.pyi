from .sampler import Sampler as Sampler, counters as counters
