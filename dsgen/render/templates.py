"""The Jinja environment: sandboxed, strict, and with one filter for each place that a value can go to."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dsgen.findings import DsgenError
from dsgen.resources import cache_folder


def environment(sources: Mapping[str, str], *, cached: bool = False) -> jinja2.Environment:
    """An environment over templates given as text (name -> source); with `cached`, compiled ones are kept on disk."""
    env = ImmutableSandboxedEnvironment(
        loader=jinja2.DictLoader(dict(sources)),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # a template is rendered once: optimizing it takes longer than it saves
        bytecode_cache=_compiled_before() if cached else None,
    )
    env.filters["sh"] = sh
    env.filters["python"] = python
    env.filters["json"] = to_json
    env.filters["env_value"] = env_value
    return env


class _Cache(jinja2.FileSystemBytecodeCache):
    """Compiled templates on disk, by content. A disk that takes no more is no reason to fail."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError):
            super().dump_bytecode(bucket)


def _compiled_before() -> _Cache | None:
    """Templates that an earlier rendering compiled, which is a tenth of a rendering's time; None where no folder of
    this user's alone can be had. The folder is `cache_folder("templates")`."""
    try:
        folder = cache_folder("templates")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except OSError:
        return None
    # What is loaded from there is run: nobody else may write to it.
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        return None
    return _Cache(str(folder))


def render_template(env: jinja2.Environment, name: str, **context: Any) -> str:
    """Render one template. Raises DsgenError that names the template and the line of a template's fault."""
    try:
        return env.get_template(name).render(**context)
    except jinja2.TemplateSyntaxError as error:
        where = f"{error.name or name}:{error.lineno}"
        raise DsgenError(f"template {where}: {error.message}") from None
    except jinja2.TemplateNotFound as error:
        raise DsgenError(f"template {name} asks for {error.name}, which is not there") from None
    except RecursionError:
        raise DsgenError(f"template {name}: it includes or calls itself without end") from None
    except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DsgenError(f"template {name}:{_line(error, name) or '?'}: {error}") from None


def sh(value: Any) -> str:
    """A value as one word of a POSIX shell."""
    return shlex.quote(_plain(value))


def env_value(value: Any) -> str:
    """A value for a line NAME=VALUE of DeepSpeed's environment file.

    DeepSpeed hands the line to each node's shell as `export NAME=VALUE`; where the value holds anything but word
    characters and @%+=:,./- it puts double quotes around it and escapes nothing (launcher/multinode_runner.py,
    add_export). So what a shell reads inside double quotes is escaped here, and % is doubled, because pdsh replaces
    %n, %h and %u. A value cannot hold a line break; the rules have refused those.
    """
    return re.sub(r'([\\"$`])', r"\\\1", _plain(value)).replace("%", "%%")


def to_json(value: Any) -> str:
    """A value as strict JSON, indented; keys in their own order."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def python(value: Any, indent: int = 0) -> str:
    """A value as a Python literal; containers that do not fit on a line stand one item to a line, at `indent`."""
    flat = _flat(_literal(value))
    if indent + len(flat) <= 100 or not isinstance(value, (Mapping, list, tuple)) or not value:
        return flat
    inner, pad = " " * (indent + 4), " " * indent
    if isinstance(value, Mapping):
        lines = [f"{inner}{_flat(key)}: {python(item, indent + 4)},\n" for key, item in value.items()]
        return "{\n" + "".join(lines) + pad + "}"
    opening, closing = ("(", ")") if isinstance(value, tuple) else ("[", "]")
    lines = [f"{inner}{python(item, indent + 4)},\n" for item in value]
    return opening + "\n" + "".join(lines) + pad + closing


def _literal(value: Any) -> Any:
    """`value` with mappings as plain dicts; anything that has no literal is a fault of the caller."""
    if isinstance(value, Mapping):
        return {str(key): _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_literal(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} has no Python literal")


def _flat(value: Any) -> str:
    """A literal on one line, text in double quotes as formatters write it."""
    if isinstance(value, str):
        single = repr(value)
        return f'"{single[1:-1]}"' if single[0] == "'" and '"' not in single else single
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flat(key)}: {_flat(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flat, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_flat, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Path)):
        raise TypeError(f"{type(value).__name__} has no plain text form")
    return str(value)


def _line(error: BaseException, name: str) -> int | None:
    """The line of the template in which an error arose: jinja2 rewrites tracebacks to template lines."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in ("<template>", name):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
