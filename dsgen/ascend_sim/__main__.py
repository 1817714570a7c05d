"""`python -m dsgen.ascend_sim build`: build the simulated NPU and print its folder."""

from __future__ import annotations

import sys

from dsgen.ascend_sim.build import build
from dsgen.findings import DsgenError, ExitCode


def main(arguments: list[str]) -> int:
    """Exit code of the command."""
    if arguments != ["build"]:
        print("usage: python -m dsgen.ascend_sim build", file=sys.stderr)
        return ExitCode.USAGE
    try:
        print(build())
    except DsgenError as error:
        print(f"error: {error.message}" + (f"\n  help: {error.help}" if error.help else ""), file=sys.stderr)
        return error.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
