"""`chappe plan`: the planner's commands. Each lives in a module that is imported when the command is used."""

from __future__ import annotations

from chappe.cli.settings import example_text, make_app

HELP = (
    "The arithmetic of a run before hosts are rented: broadcast, staleness, capacity, activation and cost. "
    "Everything can come from one TOML file (--scenario); nothing is assumed."
)

COMMANDS = {
    "capacity": (
        "chappe.cli.plancapacity:capacity",
        "How much rollout throughput a run needs so that the learner never waits.",
        "chappe plan capacity --t-train 1500s --t-bcast 1437s --kappa 2 \\\n"
        "    --batch 2048 --rollouts-per-s 0.33 --plot capacity.png\n"
        "chappe plan capacity --scenario scenario.toml --coordinator 127.0.0.1:7400",
    ),
    "topology": (
        "chappe.cli.plantopology:topology",
        "How long a broadcast takes: chains, a star, and the bound that no topology beats.",
        "chappe plan topology --payload 16.4GB --uplink 300mbit --workers 9 \\\n"
        "    --worker-downlink 100mbit\n"
        "chappe plan topology --payload 16.4GB --uplink 300mbit --fleet hosts.toml",
    ),
    "staleness": (
        "chappe.cli.planstaleness:staleness",
        "How old trajectories become, and what was published about it.",
        "chappe plan staleness --staleness 3 --t-train 1500s --t-bcast 1437s --batch 2048",
    ),
    "activation": (
        "chappe.cli.planactivation:activation",
        "Which workers to activate: the cheapest that together make enough.",
        'chappe plan activation --offers "8xRTX-5090@0.35/0.33, 2xA100@3.06/1.9" \\\n'
        "    --required-rollouts-per-s 2.62\n"
        "chappe plan activation --fleet hosts.toml --t-train 1500s --t-bcast 1437s --kappa 2 --batch 2048",
    ),
    "cost": (
        "chappe.cli.plancost:cost",
        "What two fleets cost, and where the cheaper one stops being cheaper.",
        "chappe plan cost --baseline 8xA100@3.06 --baseline-step 1508.2s \\\n"
        '    --candidate "4xA100@3.06, 8xRTX-5090@0.35" --candidate-step 1631.2s',
    ),
    "compare": (
        "chappe.cli.plancompare:compare",
        "Chains of peers against object storage, in time and in money.",
        "chappe plan compare --payload 16.4GB --uplink 300mbit --workers 9 \\\n"
        "    --worker-downlink 100mbit --period 50m \\\n"
        "    --store-egress-price 0.09 --origin-egress-price 0.09",
    ),
}

app = make_app("plan", HELP, example="chappe plan capacity --scenario scenario.toml --plot capacity.png")
app.config = ()  # a variable or a daemon's file says nothing about a plan
for _name, (_target, _help, _example) in COMMANDS.items():
    app.command(_target, name=_name, help=_help, help_epilogue=example_text(_example))
