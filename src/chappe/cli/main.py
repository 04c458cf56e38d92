"""The `chappe` command: a table of its commands. Each lives in a module that is imported when the command is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import cyclopts

from chappe.cli.quiet import quiet_grpc
from chappe.cli.settings import example_text, make_app, run_app

HELP = "Delivers each new policy snapshot of an RL training run to a fleet of rollout hosts, down relay chains."

COMMANDS = {
    "up": ("chappe.cli.up:up", "Start a local fleet for trying things out.", "chappe up --relays 3 --snapshot ./model"),
    "coordinator": (
        "chappe.cli.coordinator:coordinator",
        "Run the coordinator: it knows the fleet and decides who sends to whom; no payload passes it.",
        "chappe coordinator --listen 0.0.0.0:7400 --state sqlite:////var/lib/chappe/coordinator.db \\\n"
        "    --tls-cert coordinator.pem --tls-key coordinator-key.pem --tls-ca ca.pem",
    ),
    "publish": (
        "chappe.cli.publish:publish",
        "Publish a safetensors file or a Hugging Face directory to the fleet.",
        "chappe publish ./model --coordinator 127.0.0.1:7400 --version 12 --uplink 300mbit",
    ),
    "cancel": ("chappe.cli.admin:cancel", "Stop the publication of a version.", "chappe cancel 12"),
    "drain": ("chappe.cli.admin:drain", "Move a worker out of its chain gracefully.", "chappe drain worker-3"),
    "forget": ("chappe.cli.admin:forget", "Drop a worker that is dead.", "chappe forget worker-3"),
    "status": (
        "chappe.cli.status:status",
        "Show the fleet, its chains and how far each publication is.",
        "chappe status --coordinator 127.0.0.1:7400 --watch",
    ),
    "explain": (
        "chappe.cli.explain:explain",
        "Say why a worker stands where it does: who feeds it, whom it feeds, what its links carry.",
        "chappe explain worker-3 --coordinator 127.0.0.1:7400",
    ),
    "diff": (
        "chappe.cli.diff:diff",
        "Say what a delta between two snapshots would cost, tensor by tensor.",
        "chappe diff ./step-11 ./step-12 --workers 9 --uplink 300mbit --worker-downlink 100mbit --plot density.png",
    ),
    "export": (
        "chappe.cli.interop:export",
        "Write a snapshot as a version in slime's directory form, which SGLang pulls.",
        "chappe export ./step-12 ./versions --format slime --version 12 --base ./step-11",
    ),
    "import": (
        "chappe.cli.interop:import_",
        "Make a snapshot of a version in slime's directory form.",
        "chappe import ./versions ./step-12 --format slime --version 12 --base ./model",
    ),
    "simulate": (
        "chappe.cli.simulate:simulate",
        "Simulate a fleet: the real decisions over simulated links and faults, replayed by a seed.",
        "chappe simulate --relays 100 --seed 7 --faults kill,pause,coordinator --json",
    ),
    "verify": (
        "chappe.cli.verify:verify",
        "Re-hash a landed snapshot against its manifest.",
        "chappe verify /var/lib/relayd/current",
    ),
}


def build() -> cyclopts.App:
    app = make_app(
        "chappe",
        HELP,
        example="""
            chappe up --relays 3
            chappe publish ./model --version 1
            chappe status --watch
        """,
    )
    for name, (target, help_text, example) in COMMANDS.items():
        app.command(target, name=name, help=help_text, help_epilogue=example_text(example))
    app.command(
        "chappe.cli.plan:app",
        name="plan",
        help="Work out what a run needs: broadcast, staleness, capacity, activation, cost.",
    )
    app.command("chappe.cli.keys:app", name="keys", help="Make the fleet's CA and issue certificates.")
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    with quiet_grpc():
        code = run_app(build(), arguments, env_prefix="CHAPPE_")
    sys.exit(code)


if __name__ == "__main__":
    main()
