"""Fields that the recipe's language has and whose run is not built yet.

They are refused, never ignored: a recipe that says them would otherwise train something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgen.findings import Finding


def unbuilt_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    """Neutral path -> reason, for every such field that the recipe uses."""
    reasons: dict[str, str] = {}
    for name in ("tensor", "sequence"):
        if (getattr(fields["parallel"], name, None) or 1) > 1:
            reasons[f"parallel.{name}"] = f"the training loop does not split a {'layer' if name == 'tensor' else name}"
    if getattr(fields["restart"], "attempts", None):
        reasons["restart"] = "the launcher does not start a failed job again; `dsgen launch --resume` does by hand"
    if fields["launcher"] not in (None, "deepspeed", "torchrun"):
        reasons["launcher"] = f"{fields['launcher']} jobs are not rendered, only deepspeed and torchrun"
    return reasons


def only_its_run(finding: Finding) -> bool:
    """Whether a finding refuses nothing but the run: the memory of tensor and sequence parallelism can be estimated."""
    return finding.code == "NYB001" and finding.path in ("parallel.tensor", "parallel.sequence")
