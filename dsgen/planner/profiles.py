"""Device profiles: what `dsgen calibrate` found out about a kind of device, as YAML files that estimates read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dsgen.documents.atomic import write_set
from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import dotted
from dsgen.documents.yaml_reader import read_yaml_file
from dsgen.findings import DsgenError
from dsgen.memory.calibration import Calibration
from dsgen.resources import config_folder

NONE = "none"
"""In place of a file: no profile."""

_HEAD = """\
# Measured by `dsgen calibrate`. Estimates for this device take context_bytes and reserved_factors from here.
"""
_MOST_BYTES = 1 << 40
_MOST_FACTOR = 10.0

Bytes = Annotated[int, Field(ge=0, le=_MOST_BYTES)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$")]


def _ascending(factors: list[float]) -> list[float]:
    if factors[0] > factors[1]:
        raise ValueError("the lower one comes first")
    return factors


Factors = Annotated[
    list[Annotated[float, Field(ge=1, le=_MOST_FACTOR, allow_inf_nan=False)]],
    Field(min_length=2, max_length=2),
    AfterValidator(_ascending),
]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MeasuredRun(_Fields):
    """One run that a profile was made from."""

    name: Word
    run: Annotated[str, Field(max_length=1000)]
    """Its folder, as `NAME/NNN`."""
    allocated_estimated_bytes: Bytes
    allocated_measured_bytes: Annotated[int, Field(gt=0, le=_MOST_BYTES)]
    reserved_bytes: Bytes
    reserved_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None
    """Reserved / allocated; None where the run does not tell it."""
    context_bytes: Bytes
    versions: dict[Word, Word]

    @property
    def error(self) -> float:
        """Of the estimate of what tensors hold: 0.01 is 1 % too much."""
        return self.allocated_estimated_bytes / self.allocated_measured_bytes - 1


class Profile(_Fields):
    """What the runs of one kind of device have shown."""

    profile: Literal[1] = 1
    device: Word
    simulated: bool
    """Whether the runs were on the simulated NPU, which tells nothing of a real one."""
    context_bytes: Bytes
    reserved_factors: Factors | None
    """The lowest and the highest of the runs; None where none told."""
    allocated_error: Annotated[list[float], Field(min_length=2, max_length=2)]
    """The lowest and the highest of the runs."""
    runs: Annotated[list[MeasuredRun], Field(min_length=1, max_length=10_000)]

    def calibration(self, path: Path) -> Calibration:
        """What estimates take from it."""
        versions = {f"{name} {version}" for run in self.runs for name, version in run.versions.items()}
        count = f"{len(self.runs)} run{'s' if len(self.runs) > 1 else ''}"
        simulated = " on the simulated NPU" if self.simulated else ""
        told = f" ({', '.join(sorted(versions))})" if versions else ""
        low_high = self.reserved_factors
        return Calibration(
            device=self.device,
            context_bytes=self.context_bytes,
            reserved_factors=(low_high[0], low_high[1]) if low_high is not None else None,
            source=f"calibrated by {count}{simulated}{told}, {path}",
        )


def default_path(device: str) -> Path:
    """Where the profile of a device stands for this user. Raises OSError when this user has no home folder."""
    return config_folder("profiles") / f"{device}.yaml"


def find_calibration(device: str, wanted: str | None = None) -> Calibration | None:
    """The calibration of a device: from the file `wanted`, none for `none`, else from the user's own if there is one.

    Raises DocumentError for a file that cannot be read, is no profile, or is that of another device.
    """
    if wanted == NONE:
        return None
    if wanted is not None:
        path = Path(wanted)
    else:
        try:
            path = default_path(device)
            if not path.exists() and not path.is_symlink():
                return None
        except OSError:
            # Without a home folder, or in one that nobody may look into, there is none.
            return None
    return read_profile(path, device).calibration(path)


def read_profile(path: Path, device: str | None = None) -> Profile:
    """The profile in a file, which must be of `device` if one is given. Raises DocumentError."""
    help = "measure again with `dsgen calibrate`, or estimate without it: --profile none"
    document = read_yaml_file(path)
    if not isinstance(document.value, dict):
        raise DocumentError("is no device profile", document.at(()), help=help)
    try:
        profile = Profile.model_validate(document.value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = tuple(part for part in first["loc"] if part != "[key]")
        place = document.at_key(where) if first["type"] == "extra_forbidden" else document.at(where)
        message = first["msg"].removeprefix("Value error, ")
        raise DocumentError(f"{dotted(where) or 'profile'}: {message}", place, help=help) from None
    if device is not None and profile.device != device:
        raise DocumentError(
            f"is the profile of {profile.device}, and the estimate is for {device}", document.at(("device",)), help=help
        )
    return profile


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile; only another profile is overwritten. Raises DsgenError."""
    if path.exists() or path.is_symlink():
        try:
            read_profile(path)
        except DocumentError as error:
            raise DsgenError(
                f"{path} is not overwritten, because it is no device profile: {error.message}",
                help="name another file with --output, or remove it",
            ) from None
    text = _HEAD + yaml.safe_dump(_plain(profile), sort_keys=False, allow_unicode=True)
    try:
        write_set(path.absolute().parent, {path.name: (text.encode(), False)})
    except OSError as error:
        raise DsgenError(f"{path} cannot be written: {error.strerror}") from error


def _plain(profile: Profile) -> dict[str, Any]:
    return profile.model_dump(mode="json")
