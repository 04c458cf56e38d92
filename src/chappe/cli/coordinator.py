"""`chappe coordinator`: settings in, daemon out."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from chappe.cli.settings import Flat
from chappe.cli.settings import print_config as print_settings
from chappe.coordinator.config import CoordinatorSettings
from chappe.coordinator.training_settings import NO_TRAINING, TrainingSettings

DEFAULTS = CoordinatorSettings()


def coordinator(
    *,
    settings: Annotated[CoordinatorSettings, Flat] = DEFAULTS,
    training: Annotated[TrainingSettings, Flat] = NO_TRAINING,
    print_config: Annotated[bool, Parameter(negative="", show_env_var=False)] = False,
) -> int:
    """Run the coordinator until SIGTERM. It knows the fleet and decides who sends to whom; no payload passes it.

    Parameters
    ----------
    print_config
        Print the effective settings as TOML and stop.
    """
    wanted = training.config()
    if print_config:
        print_settings(settings, table="coordinator")
        if wanted is not None:
            print()
            print_settings(training, table="training")
        return 0

    import uvloop

    from chappe.coordinator.daemon import run_coordinator
    from chappe.logs import configure_logging

    configure_logging(settings.log_format)
    return uvloop.run(run_coordinator(settings, wanted))
