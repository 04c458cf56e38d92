"""`python -m bench clean`: what a crashed run left behind is removed, and named."""

from __future__ import annotations

from bench import links, scratch


def clean() -> int:
    """Remove namespaces, the processes in them, and scratch directories whose makers are gone. What runs stays."""
    removed = [*links.clean(), *map(str, scratch.clean())]
    for name in removed:
        print(name)
    if not removed:
        print("nothing to clean")
    return 0
