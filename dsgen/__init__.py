"""dsgen: DeepSpeed/ZeRO configurations and launchers from a short recipe, for Ascend NPUs, CUDA and CPU."""

__version__ = "0.1.0"
