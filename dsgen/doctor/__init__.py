"""Judging a machine, for a recipe or as it is: versions, CANN, devices, links, builds, memory, ports, hosts, disk.

Every check has a name, a state, what was found and a remedy. None of them raises, and none imports torch here.
"""
