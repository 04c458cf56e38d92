"""`python -m bench clean`: what a crashed run left behind is removed, and named."""

from __future__ import annotations

from bench import links


def clean() -> int:
    """Remove the namespaces, and the processes in them, whose makers are gone. What runs is left alone."""
    removed = links.clean()
    for name in removed:
        print(name)
    if not removed:
        print("nothing to clean")
    return 0
