"""Starts ranks quickly on the simulated NPU or the CPU, as DS_ACCELERATOR says: imports everything once, then forks.

Answers as `tests/runtime/rank_server.py` does. The forked ranks touch the device first, so that each has its own.
"""

from __future__ import annotations

import gc
import json
import os
import sys

from tests.runtime.rank_server import run


def main() -> None:
    import deepspeed
    import peft  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    # What a build prints must not get among the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if os.environ["DS_ACCELERATOR"] == "npu":
        import torch_npu  # noqa: F401
        from deepspeed.ops.op_builder.npu import CPUAdamBuilder

        CPUAdamBuilder().load(verbose=False)
    print(json.dumps({"ready": deepspeed.__version__}), file=answers)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
