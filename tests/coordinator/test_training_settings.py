"""Section [training]: its own table in the coordinator's file, names as flags, refused by name when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from chappe.cli import status as status_command
from chappe.cli.coordinator import coordinator
from chappe.cli.settings import make_app, run_app
from chappe.cli.statustables import StatusTables
from chappe.coordinator.metrics import CoordinatorMetrics
from chappe.coordinator.status import status_json
from chappe.coordinator.training_settings import TrainingSettings
from chappe.core.training_config import Mode, TrainingConfig
from chappe.core.training_view import TrainingView
from chappe.core.views import StatusView
from chappe.v1 import coordinator_pb2 as pb

VIEW = TrainingView(
    verdict="thin",
    reason="less than 1.1 times that",
    kappa=2,
    batch=2048.0,
    gamma=1.1,
    fraction=0.9,
    t_train_s=1500.0,
    t_train_source="told",
    t_bcast_s=1437.0,
    tail_s=1600.0,
    t_bcast_source="expected",
    slack_s=1563.0,
    required_rollouts_per_s=2.62,
    pool_rollouts_per_s=2.64,
    required_workers=9,
    active_workers=8,
)


def printed(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    app = make_app("chappe", "Test.")
    app.command(coordinator)
    code = run_app(app, ("coordinator", *arguments, "--print-config"), env_prefix="CHAPPETEST_")
    out, err = capsys.readouterr()
    return code, out, err


def test_the_section_of_the_file_is_the_commands_and_flags_win(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        '[coordinator]\nlease = "7s"\n[training]\nkappa = 2\nbatch = 2048\nt_train = "25m"\ngamma = 1.2\n'
    )
    code, out, _ = printed("--config", str(config), "--gamma", "1.3", capsys=capsys)
    assert code == 0
    coordinator_part, _, training_part = out.partition("[training]")
    assert 'lease = "7.0s"' in coordinator_part
    assert training_part.split() == [
        "kappa",
        "=",
        "2",
        "batch",
        "=",
        "2048.0",
        "gamma",
        "=",
        "1.3",
        "t_train",
        "=",
        '"1500.0s"',
    ]
    again = tmp_path / "again.toml"
    again.write_text(out)
    assert printed("--config", str(again), capsys=capsys)[1] == out


def test_without_it_nothing_is_printed_or_watched(capsys: pytest.CaptureFixture[str]) -> None:
    assert "training" not in printed(capsys=capsys)[1]
    assert TrainingSettings().config() is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[training]\nkapa = 2\n", "kapa"),
        ("[training]\nkappa = 2\n", "batch is missing"),
        ("[training]\nbatch = 64\n", "kappa (or staleness"),
        ("[training]\nkappa = 0\nbatch = 64\n", "kappa"),
        ("[training]\nkappa = 2\nbatch = nan\n", "batch"),
        ("[training]\nkappa = 2\nbatch = 64\nfraction = 0.7\n", "0.5, 0.9, 1.0"),
        ('[training]\nkappa = 2\nbatch = 64\nmode = "asynchronous"\n', "delta_max"),
        ("[training]\nkappa = 2\nbatch = 64\nt_train = 10\n", "--t-train"),
        ("training = 3\n", "[training]"),
        ("[coordinator]\nkappa = 3\n[training]\nkappa = 2\nbatch = 64\n", "'kappa' stands in"),
        ("[trainig]\nkappa = 2\n", "trainig"),
    ],
)
def test_what_is_wrong_is_named(text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    code, _, err = printed("--config", str(config), capsys=capsys)
    assert code == 2
    assert named in err


def test_kappa_follows_from_staleness() -> None:
    found = TrainingSettings(staleness=6, batch=10).config()
    assert found == TrainingConfig(kappa=5, batch=10, staleness=6)
    asked = TrainingSettings(kappa=2, batch=10, mode="asynchronous", delta_max=3).config()
    assert asked is not None
    assert (asked.mode, asked.delta_max) == (Mode.ASYNCHRONOUS, 3)


def test_the_metrics_are_there_only_where_their_values_are_known() -> None:
    text = generate_latest(CoordinatorMetrics(lambda: StatusView("r", (), (), training=VIEW)).registry).decode()
    for line in (
        "chappe_overlap_slack_seconds 1563.0",
        "chappe_required_workers 9.0",
        "chappe_required_rollouts_per_second 2.62",
        "chappe_pool_rollouts_per_second 2.64",
        "chappe_train_step_seconds 1500.0",
        'chappe_broadcast_expected_seconds{fraction="0.9"} 1437.0',
        'chappe_broadcast_expected_seconds{fraction="1.0"} 1600.0',
        'chappe_training_verdict{verdict="thin"} 1.0',
        'chappe_training_verdict{verdict="enough"} 0.0',
    ):
        assert line in text.splitlines(), line
    bare = TrainingView("unknown", "", 2, 64.0, 1.1, 1.0)
    text = generate_latest(CoordinatorMetrics(lambda: StatusView("r", (), (), training=bare)).registry).decode()
    assert "\nchappe_overlap_slack_seconds " not in text
    without = generate_latest(CoordinatorMetrics(lambda: StatusView("r", (), ())).registry).decode()
    assert "chappe_training_verdict" not in without


def test_status_prints_figures_the_warning_and_null_for_what_is_unknown() -> None:
    fields = {name: getattr(VIEW, name) for name in VIEW.__dataclass_fields__}
    answer = pb.Status(run="r", training=pb.TrainingStatus(**fields))
    shown = status_json(answer)["training"]
    assert (shown["slack_s"], shown["required_workers"], shown["bubble"]) == (1563.0, 9, None)
    console = status_command.console()
    with console.capture() as captured:
        console.print(StatusTables(answer))
    text = " ".join(captured.get().split())
    assert "T_bcast(0.9) 23 min 57 s (all 26 min 40 s)" in text
    assert "WARNING: thin: less than" in text
    assert "workers 8 active, 9 required" in text
    answer.training.verdict = "enough"
    answer.training.ClearField("slack_s")
    with console.capture() as captured:
        console.print(StatusTables(answer))
    assert "WARNING" not in captured.get()
    assert "slack unknown" in captured.get()
    assert status_json(pb.Status(run="r"))["training"] is None
