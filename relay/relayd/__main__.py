"""`relayd`: settings in, daemon out."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from cyclopts import Parameter

from chappe.cli.quiet import quiet_grpc
from chappe.cli.settings import Flat, make_app, run_app
from chappe.cli.settings import print_config as print_settings
from relayd.config import RelaydSettings

HELP = (
    """The worker daemon: receives every new snapshot from one parent, passes it on to the next relay, and lands it."""
)

EXAMPLE = """\
relayd --coordinator trainer.example:7400 --store /var/lib/relayd \\
    --name worker-1 --listen 0.0.0.0:7401 --downlink 100mbit --uplink 100mbit \\
    --tls-cert worker-1.pem --tls-key worker-1-key.pem --tls-ca ca.pem \\
    --install 'command /usr/local/bin/load-weights'
"""


def relayd(
    *,
    settings: Annotated[RelaydSettings, Flat],
    print_config: Annotated[bool, Parameter(negative="", show_env_var=False)] = False,
) -> int:
    """Run until SIGTERM.

    Parameters
    ----------
    print_config
        Print the effective settings as TOML and stop.
    """
    if print_config:
        print_settings(settings)
        return 0

    from chappe.hop.malloc import raise_thresholds

    raise_thresholds()  # before grpc is imported

    import uvloop

    from chappe.logs import configure_logging

    with quiet_grpc():  # not longer: the install hook has its own environment
        from relayd.daemon import run_relayd

    configure_logging(settings.log_format, settings.log_level)
    code = uvloop.run(run_relayd(settings))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is closed: taking gRPC and the interpreter apart may cost half of the 5 s that a stop may take


app = make_app("relayd", HELP, EXAMPLE)
app.default(relayd)


def main() -> int:
    return run_app(app, env_prefix="RELAYD_")


if __name__ == "__main__":
    sys.exit(main())
