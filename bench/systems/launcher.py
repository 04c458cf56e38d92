"""Runs in a host's namespace: says `ready`, reads a command (JSON) from stdin, runs it, says when it ended and how."""

import json
import subprocess
import sys
import time


def main() -> None:
    print("ready", flush=True)
    line = sys.stdin.readline()
    if line:
        code = subprocess.call(json.loads(line), stdin=subprocess.DEVNULL, stdout=sys.stderr)
        print("done" if code == 0 else f"failed {code}", time.monotonic(), flush=True)
        sys.stdin.read()


main()
