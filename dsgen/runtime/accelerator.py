"""The device that DeepSpeed chose, checked against the one that the recipe is for."""

from __future__ import annotations

import os
from typing import Any

from dsgen.runtime.arguments import Ranks
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Settings

_VARIABLE = "DS_ACCELERATOR"

_WHY = {
    "npu": (
        "DeepSpeed takes the NPU only when `import torch_npu` works: torch_npu must be installed in the version of "
        "torch, and CANN's set_env.sh must be sourced"
    ),
    "cuda": "DeepSpeed takes CUDA only when torch was built with it and sees a device",
    "cpu": "DeepSpeed takes another device than the CPU where it finds one",
}

_DO = {
    "npu": "source /usr/local/Ascend/ascend-toolkit/set_env.sh, check `python -c 'import torch_npu'`, export "
    f"{_VARIABLE}=npu",
    "cuda": f"install a CUDA build of torch, check `nvidia-smi`, export {_VARIABLE}=cuda",
    "cpu": f"export {_VARIABLE}=cpu",
}


def choose_accelerator(settings: Settings, ranks: Ranks) -> Any:
    """DeepSpeed's accelerator object, made sure to be the recipe's, with this rank's device set.

    Where DS_ACCELERATOR is unset it is set to the recipe's accelerator, so that DeepSpeed cannot fall back to
    another one. Raises RuntimeProblem when the accelerator, its communication backend or the number of its
    devices is not what the recipe needs. Imports deepspeed.
    """
    wanted = settings.accelerator
    chosen_by_user = os.environ.setdefault(_VARIABLE, wanted)
    if chosen_by_user != wanted:
        raise RuntimeProblem(
            f"the recipe is for the accelerator {wanted}, but {_VARIABLE}={chosen_by_user} is set in the environment",
            f"export {_VARIABLE}={wanted}, or render the recipe for {chosen_by_user}",
        )
    if wanted == "npu":
        _import_torch_npu()
    try:
        from deepspeed.accelerator import get_accelerator

        accelerator = get_accelerator()
    except ImportError as error:
        raise RuntimeProblem(f"deepspeed cannot be imported: {error}", "pip install 'dsgen[train]'") from error
    except Exception as error:
        raise RuntimeProblem(f"DeepSpeed found no accelerator {wanted}: {error}", _DO[wanted]) from error
    check_accelerator(accelerator, settings, ranks)
    accelerator.set_device(ranks.local_rank)
    return accelerator


def check_accelerator(accelerator: Any, settings: Settings, ranks: Ranks) -> None:
    """Raise RuntimeProblem unless `accelerator` (DeepSpeed's) is what `settings` were made for.

    This comes before any process group: training on a device that DeepSpeed fell back to must be impossible.
    """
    wanted = settings.accelerator
    chosen = str(accelerator.device_name())
    if chosen != wanted:
        raise RuntimeProblem(
            f"the recipe is for the accelerator {wanted}, but DeepSpeed chose {chosen}; "
            f"{_WHY[wanted]}; {_VARIABLE} was {os.environ.get(_VARIABLE, 'not set')}",
            _DO[wanted],
        )
    backend = str(accelerator.communication_backend_name())
    if backend != settings.backend:
        why = (
            "oneccl_bindings_for_pytorch is installed, and DeepSpeed prefers it to gloo"
            if backend == "ccl"
            else f"that is what DeepSpeed uses on {chosen}"
        )
        raise RuntimeProblem(
            f"the recipe is for the communication backend {settings.backend}, but DeepSpeed would use {backend}: {why}",
            "pip uninstall oneccl_bind_pt" if backend == "ccl" else "render the recipe again",
        )
    if wanted == "cpu":
        return
    devices = int(accelerator.device_count()) if accelerator.is_available() else 0
    if devices < ranks.local_world_size:
        mask = "ASCEND_RT_VISIBLE_DEVICES" if wanted == "npu" else "CUDA_VISIBLE_DEVICES"
        raise RuntimeProblem(
            f"this node runs {ranks.local_world_size} ranks but shows {devices} {wanted} device(s); "
            f"{mask} is {os.environ.get(mask, 'not set')}",
            "start as many ranks as there are devices, or let more devices be seen",
        )


def _import_torch_npu() -> None:
    try:
        import torch_npu  # noqa: F401
    except ImportError as error:
        raise RuntimeProblem(
            f"the recipe is for Ascend NPUs, but torch_npu cannot be imported: {error}; "
            "DeepSpeed alone would have gone on with the CPU",
            "source /usr/local/Ascend/ascend-toolkit/set_env.sh (libhccl.so and its neighbours come from there) and "
            "install the torch_npu that matches torch: pip install 'dsgen[npu]'",
        ) from error
    except Exception as error:
        raise RuntimeProblem(
            f"the recipe is for Ascend NPUs, but torch_npu fails: {error}",
            "source /usr/local/Ascend/ascend-toolkit/set_env.sh; torch must be the CPU build of the version that "
            "torch_npu was made for, not a CUDA build",
        ) from error
