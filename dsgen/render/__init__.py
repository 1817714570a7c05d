"""Plans to files: Jinja templates, the set of files, the lock, and checking that files are still what they were."""

from dsgen.render.files import Rendered, render_recipe
from dsgen.render.output import write

__all__ = ["Rendered", "render_recipe", "write"]
