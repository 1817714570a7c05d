"""The simulated NPU: the real torch_npu and DeepSpeed's real NPU accelerator on stub libraries of CANN.

What it proves and what it cannot: docs/ascend-sim.md. Nothing here imports torch.
"""

from dsgen.ascend_sim.build import ToolkitMissing, build, why_not
from dsgen.ascend_sim.environment import MARK, is_simulated, simulated_environment

__all__ = [
    "MARK",
    "ToolkitMissing",
    "build",
    "is_simulated",
    "simulated_environment",
    "why_not",
]
