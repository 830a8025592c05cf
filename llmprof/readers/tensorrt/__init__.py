"""Files of trtexec: profiles of layers, times of iterations, descriptions of layers."""
