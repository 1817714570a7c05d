"""Fields that the recipe's language has and whose run is not built yet.

They are refused, never ignored: a recipe that says them would otherwise train something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgen.documents.document import Document


def unbuilt_fields(fields: Mapping[str, Any], document: Document) -> dict[str, str]:
    """Neutral path -> reason, for every such field that the recipe uses."""
    reasons: dict[str, str] = {}
    parallel = fields.get("parallel")
    for name in ("tensor", "sequence"):
        if (getattr(parallel, name, None) or 1) > 1:
            reasons[f"parallel.{name}"] = f"the training loop does not split a {'layer' if name == 'tensor' else name}"
    if fields.get("restart") is not None:
        reasons["restart"] = "the launcher does not start a failed job again; `dsgen launch --resume` does by hand"
    if fields.get("entrypoint") is not None:
        reasons["entrypoint"] = "only the rendered train.py is launched"
    launcher = fields.get("launcher")
    if launcher not in (None, "deepspeed", "torchrun"):
        reasons["launcher"] = f"{launcher} jobs are not rendered, only deepspeed and torchrun"
    logging = fields.get("logging")
    if getattr(logging, "memory_snapshot", None):
        reasons["logging.memory_snapshot"] = "the training loop takes no snapshots"
    return reasons
