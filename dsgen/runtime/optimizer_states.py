"""What DeepSpeed leaves out when it loads an optimizer, so that a resumed run goes on exactly as it would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def complete_optimizer(engine: Any, folder: Path) -> None:
    """Bring the optimizer to where it was after `engine.load_checkpoint` loaded the checkpoint in `folder`."""
    if engine.zero_nvme_offload_optimizer():
        _restore_swapped(engine, folder)
    _replay_bias_correction(getattr(engine.optimizer, "optimizer", None))


def _restore_swapped(engine: Any, folder: Path) -> None:
    """The optimizer states that are on NVMe.

    DeepSpeed 0.19.8 (runtime/engine.py, `load_checkpoint`) copies the swap files back and reads nothing else of the
    optimizer. Learning rates, step counts, the loss scale, the fact that there are moments in swap files, and parts too
    small for a swap file (less than 1 MiB or `aio.block_size`) would be those of a fresh start, without a word. All of
    it is in the checkpoint.
    """
    import torch

    path = engine._get_zero_ckpt_name(str(folder.parent), folder.name)
    saved = torch.load(path, map_location="cpu", weights_only=False)["optimizer_state_dict"]
    zero, optimizer = engine.optimizer, engine.optimizer.optimizer
    for name in ("loss_scaler", "dynamic_loss_scale", "overflow"):
        setattr(zero, name, saved[name])
    inner = saved["optimizer_state_dict"]
    for group, old in zip(optimizer.param_groups, inner["param_groups"], strict=True):
        group.update({name: value for name, value in old.items() if name != "params"})
    zero._set_fp32_optimizer_param_groups()
    numbered = [weights for group in optimizer.param_groups for weights in group["params"]]
    zero._clear_fp32_optimizer_param_groups()
    for number, state in inner["state"].items():
        weights = numbered[number]
        optimizer.state[weights] = state
        swapped = {name: value for name, value in state.items() if torch.is_tensor(value) and not value.numel()}
        for name, value in swapped.items():
            # The swapper finds the file of a tensor by this name (swap_tensor/optimizer_utils.py).
            value.ds_id = f"{name}-{weights.ds_id}"
        if swapped:
            zero.optimizer_swapper.swap_params_info[weights.ds_id].add_state_tensors(list(swapped.values()))
    zero.checkpoint_event_prologue()
    for number, (weights, old) in enumerate(
        zip(zero.fp32_partitioned_groups_flat, saved["fp32_flat_groups"], strict=True)
    ):
        if old.numel():
            weights.data.copy_(old)
            zero._reassign_or_swap_out_partitioned_parameters(number)
    zero.checkpoint_event_epilogue()


def _replay_bias_correction(optimizer: Any) -> None:
    """Give DeepSpeed's CPU Adam the bias corrections that it had.

    Its C++ part (csrc/includes/cpu_adam.h, `IncrementStep`) multiplies the powers of the betas up from step to step in
    fp32, but takes them from `pow` when it is asked to jump to a step. The two differ in the last bits, with the usual
    betas at steps 19 to 47 and many later ones, and so would all losses after a resume. So it walks there, with empty
    tensors; 100,000 steps take 0.2 s.
    """
    if type(optimizer).__name__ != "DeepSpeedCPUAdam":
        return
    import torch

    steps = max((int(state.get("step", 0)) for state in optimizer.state.values()), default=0)
    betas = optimizer.defaults["betas"]
    if any(tuple(group["betas"]) != tuple(betas) for group in optimizer.param_groups):
        # A schedule that changes betas makes it take `pow` at every step.
        return
    empty = torch.zeros(0)
    for step in range(1, steps + 1):
        optimizer.ds_opt_adam.adam_update(
            optimizer.opt_id, step, 0.0, *betas, 1.0, 0.0, True, empty, empty, empty, empty
        )
