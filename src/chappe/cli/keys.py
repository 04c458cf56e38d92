"""`chappe keys init` and `chappe keys issue`: the fleet's CA and certificates, as files to copy to the hosts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from chappe.cli.settings import example_text, make_app
from chappe.keys import CERTIFICATE_DAYS, init_fleet, issue

app = make_app(
    "keys",
    "The fleet's CA and certificates for mutual TLS.",
    example="""
        chappe keys init ./keys
        chappe keys issue coordinator --directory ./keys
        chappe keys issue worker-1 --directory ./keys
    """,
)


@app.command(name="init", help_epilogue=example_text("chappe keys init ./keys"))
def init(directory: Annotated[Path, Parameter(show_env_var=False)], /) -> int:
    """Make a CA in a directory. Keep `ca-key.pem` off the hosts: only `chappe keys issue` needs it.

    Parameters
    ----------
    directory
        Where to write `ca.pem` and `ca-key.pem`; made when it is not there.
    """
    print(f"CA certificate: {init_fleet(directory)}")
    return 0


@app.command(name="issue", help_epilogue=example_text("chappe keys issue worker-1 --directory ./keys"))
def issue_certificate(
    name: Annotated[str, Parameter(show_env_var=False)],
    /,
    *,
    directory: Path = Path(),
    address: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    days: int = CERTIFICATE_DAYS,
) -> int:
    """Issue a certificate for one node: peers know it by this name, whatever its address.

    Parameters
    ----------
    name
        The worker's name (`relayd --name`), the publisher's (`chappe publish --name`), or `coordinator`.
    directory
        Where `chappe keys init` made the CA; the new files go there too.
    address
        A further host name or IP address of the certificate, for clients that check the address they dial. Repeatable.
    days
        How long it is valid.
    """
    files = issue(directory, name, addresses=address, days=days)
    flags = ("--tls-cert", files.cert), ("--tls-key", files.key), ("--tls-ca", files.ca)
    print(shlex.join(str(part) for pair in flags for part in pair))  # to be pasted
    return 0
