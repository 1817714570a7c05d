"""What a Plan holds in device and host memory, phase by phase: arithmetic on the Plan, no torch, no files."""
