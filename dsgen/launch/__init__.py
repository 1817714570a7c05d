"""Turning rendered files into running processes: run folders, checks of the machine, the launcher, its outcome.

Nothing here imports torch or DeepSpeed.
"""
