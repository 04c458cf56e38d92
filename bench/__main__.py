"""`python -m bench NAME`: measurements behind the figures in README and ARCHITECTURE."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import cyclopts

from chappe.cli.settings import example_text, make_app, run_app

COMMANDS = {
    "adapting": (
        "bench.adapting:adapting",
        "Striped broadcasts over links that are not what was declared, played with the real fleet machine.",
        "python -m bench adapting --fleets 2",
    ),
    "all": ("bench.every:every", "One bench after the other, then the report.", "python -m bench all --short"),
    "chain-vs-star": (
        "bench.chainstar:chain_vs_star",
        "Chappe's chains, Chappe's star and the floor over N workers (root, namespaces, tc).",
        "python -m bench chain-vs-star --b0 30mbit --workers 4 --workers 9 --repeats 1",
    ),
    "clean": (
        "bench.clean:clean",
        "Remove network namespaces, processes and scratch directories that crashed runs left behind.",
        "python -m bench clean",
    ),
    "delta": ("bench.delta:delta", "The delta codec beside what others send.", "python -m bench delta --size 256MiB"),
    "delta-links": (
        "bench.deltalinks:delta_links",
        "A delta of 1 % to eight workers over shaped links, beside its wire time (root, namespaces, tc).",
        "python -m bench delta-links --bw 50mbit --repeats 3",
    ),
    "faults": (
        "bench.faults:faults",
        "What a dead, slow or rotten relay costs a broadcast (root, namespaces, tc).",
        "python -m bench faults --only relay-drops --scale 0.25",
    ),
    "hop": (
        "bench.hop:hop",
        "Goodput, CPU and memory of relays on loopback, unshaped; hashing; bare TCP beside it.",
        "python -m bench hop --size 4GiB --repeats 1",
    ),
    "layout": (
        "bench.layout:layout",
        "Planned chains against every possible set of chains, and against the physical bound.",
        "python -m bench layout --fleets 1000",
    ),
    "loop": (
        "bench.loop:loop",
        "A small RL loop whose weights travel through Chappe, beside the planner's prediction (root, namespaces, tc).",
        "python -m bench loop --only pools",
    ),
    "peers": (
        "bench.peers:peers",
        "Chappe beside bare sockets, BitTorrent, aria2, rsync and HTTP on the same links (root, namespaces, tc).",
        "python -m bench peers --only chappe --only bittorrent --repeats 1",
    ),
    "publish": (
        "bench.publishbench:publish",
        "From publish() to the first chunk on the wire, and from the last chunk to installed.",
        "python -m bench publish --paths 16GB --landings 1GB --repeats 3",
    ),
    "relay-cpu": (
        "bench.relaycpu:relay_cpu",
        "CPU of a relay at a link's rate, beside bare sockets on the same links (root, namespaces, tc).",
        "python -m bench relay-cpu --rate 50mbit --repeats 3",
    ),
    "report": (
        "bench.report:report",
        "The newest JSON of every bench as bench/RESULTS.md, with pictures.",
        "python -m bench report --full",
    ),
    "striping": (
        "bench.striping:striping",
        "Striped plans of unequal fleets, played as a fluid, beside plain chains and the physical bound.",
        "python -m bench striping --fleets 20",
    ),
    "unequal": (
        "bench.unequal:unequal",
        "Fleets of unequal links, beside BitTorrent and the physical bound (root, namespaces, tc).",
        "python -m bench unequal --only 1 --random 0",
    ),
    "scale": (
        "bench.scale:scale",
        "Hundreds of real relays in a few processes, and a coordinator with a thousand Join streams.",
        "python -m bench scale --relays 0 --joins 1000 --repeats 1",
    ),
    "wan": (
        "bench.wan:wan",
        "One hop over long and lossy links, beside bare TCP on the same link (root, namespaces, tc).",
        "python -m bench wan --rtt 100ms --loss 0.001 --repeats 3",
    ),
}


def build() -> cyclopts.App:
    app = make_app("bench", "Measurements. Each prints a table, or with --json an object, and says what it ran on.")
    for name, (target, help_text, example) in COMMANDS.items():
        app.command(target, name=name, help=help_text, help_epilogue=example_text(example))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(run_app(build(), arguments, env_prefix="BENCH_"))


if __name__ == "__main__":
    main()
