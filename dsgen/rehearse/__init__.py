"""Rehearsing an Ascend job on a machine without NPUs: a small stand-in of the job on the simulated NPU."""
