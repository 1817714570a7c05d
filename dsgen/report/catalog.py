"""Devices and models as tables or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from dsgen.catalog.devices import Device
from dsgen.catalog.models import Architecture
from dsgen.catalog.parameters import count_parameters
from dsgen.report.console import in_bytes, table


def show_devices(devices: Sequence[Device], *, form: str) -> None:
    """Print the devices of the catalog."""
    if form == "json":
        rows = [
            {
                "id": d.id,
                "aliases": list(d.aliases),
                "kind": d.kind,
                "generation": d.generation,
                "memory_bytes": d.memory_bytes,
                "usable_bytes": d.usable_bytes,
                "bf16": d.bf16,
                "fp16": d.fp16,
                "peak_flops": dict(d.peak_flops),
                "devices_per_server": d.devices_per_server,
                "host_memory_bytes": d.host_memory_bytes,
                "host_cores": d.host_cores,
                "uncertain": list(d.uncertain),
                "sources": list(d.sources),
            }
            for d in devices
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    head = ("device", "memory", "usable", "bf16", "fp16", "peak", "per server", "uncertain")
    body = [
        (
            d.id,
            in_bytes(d.memory_bytes),
            in_bytes(d.usable_bytes),
            "yes" if d.bf16 else "no",
            "yes" if d.fp16 else "no",
            _peak(d),
            str(d.devices_per_server),
            ", ".join(d.uncertain) or "-",
        )
        for d in devices
    ]
    print(table([head, *body]))


def _peak(device: Device) -> str:
    flops = device.peak_flops.get("bf16") or device.peak_flops.get("fp16") or device.peak_flops.get("fp32")
    return f"{flops / 1e12:.0f} TFLOP/s" if flops else "-"


def show_models(models: Sequence[Architecture], sizes: Mapping[str, str], *, form: str) -> None:
    """Print the model presets."""
    names: dict[str, list[str]] = {}
    for size, name in sizes.items():
        names.setdefault(name, []).append(size)
    if form == "json":
        rows = [
            {
                "name": m.name,
                "sizes": names.get(m.name, []),
                "family": m.family,
                "parameters": count_parameters(m).total,
                "hidden_size": m.hidden_size,
                "layers": m.layers,
                "attention_heads": m.attention_heads,
                "key_value_heads": m.key_value_heads,
                "vocabulary_size": m.vocabulary_size,
                "tied_embeddings": m.tied_embeddings,
            }
            for m in models
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    head = ("model", "size", "parameters", "layers", "hidden", "heads", "kv heads", "vocabulary")
    body = [
        (
            m.name,
            ", ".join(names.get(m.name, [])) or "-",
            f"{count_parameters(m).total:,}",
            str(m.layers),
            str(m.hidden_size),
            str(m.attention_heads),
            str(m.key_value_heads),
            str(m.vocabulary_size),
        )
        for m in models
    ]
    print(table([head, *body]))
