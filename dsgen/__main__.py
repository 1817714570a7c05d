"""`python -m dsgen` is the same program as `dsgen`."""

from dsgen.cli.main import run

if __name__ == "__main__":
    run()
