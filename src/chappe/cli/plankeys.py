"""What `chappe plan` can be told: the same keys as flags and in a scenario file, flags win.

One scenario file describes one run, and every `chappe plan` command takes from it what it needs. So a key of another
command is no mistake, and a key of none is one.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Parameter
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from chappe.cli.settings import Duration, Rate, Settings, Size
from chappe.errors import ConfigError, UsageError


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")  # noqa: TRY004  pydantic reports ValueErrors
    return value


def _positive(value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"must be a number above zero, not {value:g}")
    return value


def _not_negative(value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"must be zero or a number above it, not {value:g}")
    return value


def _count(value: int) -> int:
    if value < 1:
        raise ValueError(f"must be a whole number of 1 or more, not {value}")
    return value


def _share(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(f"must be above 0 and at most 1, not {value:g}")
    return value


def _priced(value: Any) -> Any:
    """A table of prices in a file is the same as NAME=PRICE from a flag."""
    return tuple(f"{name}={price}" for name, price in value.items()) if isinstance(value, dict) else value


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Positive = Annotated[float, BeforeValidator(_no_bool), AfterValidator(_positive)]
NotNegative = Annotated[float, BeforeValidator(_no_bool), AfterValidator(_not_negative)]
Count = Annotated[int, BeforeValidator(_no_bool), AfterValidator(_count)]
Share = Annotated[float, BeforeValidator(_no_bool), AfterValidator(_share)]
Time = Annotated[Duration, AfterValidator(_positive)]
Bytes = Annotated[Size, AfterValidator(_positive)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_one_or_more), Parameter(negative="")]
Prices = Annotated[tuple[str, ...], BeforeValidator(_priced), Parameter(negative="")]


class PayloadKeys(Settings):
    """What travels. Several payloads are alternatives, shown beside each other."""

    parameters: Positive | None = None
    """Parameters of the policy (8.2e9); with --bytes-per-parameter."""
    bytes_per_parameter: Positive | None = None
    """2 for bf16."""
    payload: Bytes | None = None
    """The full snapshot's size (16.4GB), in place of the two."""
    compressed: Bytes | None = None
    """The full snapshot compressed, by encoded bytes (11.3GB)."""
    delta: Bytes | None = None
    """A delta by encoded bytes (113MB), as `chappe diff` finds them."""
    delta_density: Share | None = None
    """Share of changed elements (0.01), in place of --delta; with --delta-bytes-per-change and the parameters."""
    delta_bytes_per_change: Positive | None = None
    """Encoded bytes per changed element, index and value together (1.38), as `chappe diff` finds them."""
    send: Literal["full", "compressed", "delta"] | None = None
    """The payload that T_bcast is worked out for; the first of these that is given, unless told."""


class LinkKeys(Settings):
    """The links. Equal ones by flags, unequal ones from a fleet file."""

    uplink: Rate | None = None
    """The trainer's uplink (300mbit, 40MB)."""
    workers: Count | None = None
    """Rollout hosts."""
    worker_downlink: Rate | None = None
    """Each worker's downlink."""
    worker_uplink: Rate | None = None
    """Each worker's uplink; as its downlink unless given."""
    fleet: Path | None = None
    """TOML file with the workers' own links: [[hosts]] tables of name, downlink, uplink; or count, nat, price_per_hour,
    rollouts_per_s."""
    fraction: Share = 1.0
    """The target fraction f of T_bcast(f)."""
    chains: Annotated[int, BeforeValidator(_no_bool), Field(ge=0)] = 0
    """How many chains; 0: planned."""


class PeriodKeys(Settings):
    """The training loop."""

    t_train: Time | None = None
    """One training step (1500s)."""
    t_bcast: Duration | None = None
    """One broadcast (1437s), measured; worked out from payload and links unless given."""
    kappa: Count | None = None
    """Training steps in a publication period."""
    staleness: Annotated[int, BeforeValidator(_no_bool)] | None = None
    """S, in place of --kappa: kappa = S - 1, from 3 on."""
    batch: Positive | None = None
    """R: rollouts that one training step consumes."""


class PoolKeys(Settings):
    """The rollout workers as a pool."""

    rollouts_per_s: Positive | None = None
    """One worker's rollouts per second (0.33)."""
    pool_rollouts_per_s: Positive | None = None
    """The whole pool's: for the bubble that it leaves."""
    gamma: Positive = 1.1
    """Headroom over the requirement; absorbs single faults."""


class ActivationKeys(Settings):
    """Whom to choose from: kinds of hosts by --offers, or each host in --fleet (price_per_hour and rollouts_per_s)."""

    offers: Texts = ()
    """Kinds of hosts, COUNTxNAME@PRICE/ROLLOUTS with the price per hour and one host's rollouts per second:
    "8xRTX-5090@0.35/0.33, 2xA100@3.06/1.9". Those without /ROLLOUTS have --rollouts-per-s."""
    required_rollouts_per_s: Positive | None = None
    """What the pool must make; worked out from the training loop unless given."""
    draws: Count = 1000
    """Random orders to compare with."""
    seed: int = 0
    """Of the random orders."""


class CostKeys(Settings):
    """Two fleets and what they cost. Fleets are written 8xA100@3.06 (count, name, price per hour)."""

    baseline: Texts = ()
    """The fleet to compare with: "8xA100@3.06"."""
    candidate: Texts = ()
    """The other fleet: "4xA100@3.06, 8xRTX-5090@0.35"; its last kind is the one whose number varies."""
    price: Prices = ()
    """NAME=PRICE per hour, for fleets written without prices (in a file: a table [price])."""
    baseline_step: Time | None = None
    """One training step of the baseline (1508.2s)."""
    candidate_step: Time | None = None
    """One training step of the candidate."""
    hours: Positive | None = None
    """How long the run takes, for its whole price."""


class EgressKeys(Settings):
    """What leaving a network costs."""

    origin_egress_price: NotNegative = 0.0
    """Per GB leaving the trainer's network."""
    worker_egress_price: NotNegative = 0.0
    """Per GB leaving a worker's network."""
    period: Time | None = None
    """Time between publications; kappa * T_train unless given."""


class StoreKeys(Settings):
    """Object storage as the other way."""

    store_egress_price: NotNegative | None = None
    """Per GB leaving the store."""
    store_uplink: Rate | None = None
    """The trainer's rate to the store; --uplink unless given."""
    store_part: Bytes | None = None
    """Workers fetch parts of this size as they are uploaded (64MB); the whole object afterwards unless given."""
    storage_price: NotNegative = 0.0
    """Per GB and month of keeping a version in the store."""
    versions_kept: NotNegative = 2.0
    """How many versions the store keeps."""
    coordinator_price: NotNegative = 0.0
    """Per hour, of a host that the chains need and the store does not."""
    worker_price: NotNegative | None = None
    """Per hour of one worker: prices the workers that each way needs."""


GROUPS: tuple[type[Settings], ...] = (
    PayloadKeys,
    LinkKeys,
    PeriodKeys,
    PoolKeys,
    ActivationKeys,
    CostKeys,
    EgressKeys,
    StoreKeys,
)
KEYS = tuple(key for group in GROUPS for key in group.model_fields)
HOSTS = "hosts"
ALTERNATIVES = (
    ({"payload"}, {"parameters", "bytes_per_parameter"}),
    ({"delta"}, {"delta_density", "delta_bytes_per_change"}),
    ({"kappa"}, {"staleness"}),
)
"""Two ways to say the same: a flag of one puts the other one of the file out of force."""

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario file as it was read: `values` without the hosts. Without a file everything is empty."""

    path: Path | None
    values: Mapping[str, Any]
    hosts: tuple[Mapping[str, Any], ...] = ()

    def merge(self, flags: S) -> S:
        """The file's values for these keys, with the flags over them. Raises ConfigError naming file and key."""
        model = type(flags)
        given = flags.model_fields_set
        dropped = set[str]()
        for one, other in ALTERNATIVES:
            dropped |= other if given & one else one if given & other else set()
        values = {k: v for k, v in self.values.items() if k in model.model_fields and k not in given | dropped}
        merged = validated(model, values, f"{self.path}")
        return merged.model_copy(update={key: getattr(flags, key) for key in given})


def validated(model: type[S], values: Mapping[str, Any], where: str) -> S:
    """Raises ConfigError that begins with `where` and names the key as the file has it."""
    try:
        return model.model_validate(values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{where}: {'.'.join(str(part) for part in first['loc'])}: {message}") from error


def read_toml(flag: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag} {path}: {error}") from error


def check_keys(where: str, keys: Iterable[str], known: Iterable[str]) -> None:
    """Raises ConfigError for a key that nobody knows, with the nearest one that somebody does."""
    names = list(known)
    for key in keys:
        if key not in names:
            near = difflib.get_close_matches(key.replace("-", "_"), names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(sorted(names))}"
            raise ConfigError(f"{where}: {key!r} is not a key: {hint}")


def read_scenario(path: Path | None) -> Scenario:
    """All of the file is checked, whatever of it is used.

    Raises UsageError for a file that is none, ConfigError for a key that no `chappe plan` command has, or a bad value.
    """
    if path is None:
        return Scenario(None, {})
    document = read_toml("--scenario", path)
    check_keys(f"{path}", document, (*KEYS, HOSTS))
    values = {k: v for k, v in document.items() if k != HOSTS}
    for group in GROUPS:
        validated(group, {k: v for k, v in values.items() if k in group.model_fields}, f"{path}")
    return Scenario(path, values, tables(f"{path}", document))


def tables(where: str, document: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The [[hosts]] of a file. Raises ConfigError when they are something else."""
    found = document.get(HOSTS, [])
    if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
        raise ConfigError(f"{where}: hosts must be tables: [[hosts]]")
    return tuple(found)


def needed(what: str, **values: Any) -> None:
    """Raises UsageError that names every one of the settings that is missing (None or empty)."""
    missing = ["--" + key.replace("_", "-") for key, value in values.items() if value is None or value == ()]
    if missing:
        raise UsageError(f"{what} needs {' and '.join(missing)}")
