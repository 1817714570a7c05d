"""The program `dsgen`: finds the command's module, and turns every failure into a message and an exit code."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from dsgen import __version__
from dsgen.documents.errors import DocumentError
from dsgen.findings import DsgenError, ExitCode, FindingsError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

COMMANDS = {
    "lint": "Check DeepSpeed configs, recipes and launch files; say what is wrong and what to write.",
    "explain": "Say what a code of a finding means, with an example and what to write instead.",
    "import": "Make a recipe from a ds_config.json.",
    "render": "Write ds_config.json, train.py, launch.sh and the lock of a recipe.",
    "estimate": "Say how much device and host memory a recipe needs, and whether it fits.",
    "doctor": "Check this machine, for a recipe or as it is; say what is wrong and what to do.",
    "launch": "Render a recipe into a new run folder and train.",
    "rehearse": "Run an Ascend job in small on a simulated NPU, on a machine without NPUs.",
    "calibrate": "Turn finished runs into a device profile that estimates use.",
    "export": "Write the weights of a run as transformers loads them.",
    "devices": "List the devices that recipes can name.",
    "models": "List the model presets that recipes can name.",
    "schema": "Print the JSON Schema of recipes or of ds_config.json, for editors.",
}
"""Command -> its line in `dsgen --help`; the module `dsgen.cli.NAME` is imported only when the command runs."""

_MODULES = {"import": "import_"}
"""Commands whose module has another name, because theirs is a word of Python's."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"dsgen.cli.{_MODULES.get(cmd_name, cmd_name)}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="dsgen")
def main() -> None:
    """DeepSpeed/ZeRO configurations and launchers from a short recipe, for Ascend NPUs, CUDA and CPU."""


def run(argv: list[str] | None = None) -> None:
    """Run the program and exit."""
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)
    sys.exit(main_code(argv))


class _Output(io.FileIO):
    """Standard output or error whose reader may go away (`dsgen ... | head -1`): the rest goes to nobody.

    The command goes on to its end, so that its exit code is the one that it would have had.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _leave(self.fileno())
            return memoryview(data).nbytes


def _lasting(stream: TextIO) -> TextIO:
    """The stream as an `_Output`; what its encoding does not have is written with backslashes."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering or stream.write_through,
    )


def main_code(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    # Plugins of other packages have no part in checking a recipe; looking for them takes 20 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        result: Any = main.main(args=argv, prog_name="dsgen", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return int(result or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return int(ExitCode.INTERRUPTED)
    except FindingsError as error:
        from dsgen.report.findings import show_findings

        show_findings(error.findings, sources=error.sources)
        return int(error.exit_code)
    except DocumentError as error:
        from dsgen.report.findings import place

        click.echo(f"error: {place(error.position)}: {error.message}", err=True)
        if error.help:
            click.echo(f"  help: {error.help}", err=True)
        return int(ExitCode.USAGE)
    except DsgenError as error:
        click.echo(f"error: {error.message}", err=True)
        if error.help:
            click.echo(f"  help: {error.help}", err=True)
        return int(error.exit_code)
    except UnicodeEncodeError as error:
        word = error.object[error.start : error.end]
        click.echo(f"error: {word!a} is no text in this locale: {error.reason}", err=True)
        click.echo("  help: take a UTF-8 locale, for example LC_ALL=C.UTF-8", err=True)
        return int(ExitCode.USAGE)
    except OSError as error:
        if sys.stdout is not None:
            _leave(sys.stdout.fileno())
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {where}{error.strerror or error}", err=True)
        return int(ExitCode.USAGE)
    except Exception as error:
        return _fault(error)


def _leave(fd: int) -> None:
    """Give up an output: Python would complain once more while it flushes at exit."""
    nobody = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, fd)
    os.close(nobody)


def _fault(error: Exception) -> int:
    """A fault of dsgen itself: the traceback goes to a file, the user gets one line."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="dsgen-fault-", suffix=".txt", delete=False, encoding="utf-8") as log:
        log.write(f"dsgen {__version__}, Python {sys.version}\n\n")
        log.write("".join(traceback.format_exception(error)))
    click.echo(f"error: a fault of dsgen itself: {type(error).__name__}: {error}", err=True)
    click.echo(f"  help: please report it with {log.name}", err=True)
    return int(ExitCode.FAULT)
